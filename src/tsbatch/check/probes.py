"""What a loaded handler does with requests: each sample's answer, service time, batch invariance, isolation.

Runs in the process that loaded the archive; every result is told as an event as soon as it is there.
"""

from __future__ import annotations

import base64
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tsbatch.emulation.client_request import Call
from tsbatch.emulation.runner import Answer, HandlerRunner, WorkerDied
from tsbatch.testing.invariance import assert_batch_invariant

Tell = Callable[..., None]

SECONDS_PER_SIZE = 1.5
REPEATS = 3
SECONDS_FOR_INVARIANCE = 20.0
MOST_COMPARED = 16
TIMES_ASKED = 16
"""How often each request is asked to prove batch invariance: alone twice, and in batches of some sizes and orders."""

SHOWN = 200
"""Characters of an answer that a reason repeats."""

BROKEN = {
    "cut-off JSON": Call(b'{"inputs": ', "application/json"),
    "bytes that are nothing": Call(bytes(range(128, 256)), "application/octet-stream"),
    "an empty body": Call(b"", "application/octet-stream"),
    "another type": Call({"inputs": {"no": "such input"}}),
}
"""Requests that hardly a handler can make sense of."""


def run(runner: HandlerRunner, job: dict[str, Any], tell: Tell) -> None:
    """Ask the samples in every way, and tell what became of it.

    Args:
        runner: the loaded handler.
        job: ``samples``: a list of ``{"name", "body" (base64), "content_type"}``, or None to make some.
        tell: takes an event's name and its values.
    """
    samples = made_samples(runner.handler) if job["samples"] is None else [read_sample(one) for one in job["samples"]]
    if not samples:
        tell("unable", what="answers, service time, batch invariance and isolation", why="there are no samples")
        return
    good: list[Call] = []
    slowest = 0.0
    for name, call in samples:
        outcome, seconds = ask(runner, name, call)
        tell("sample", **outcome, seconds=seconds)
        slowest = max(slowest, seconds)
        if 200 <= outcome["status"] < 300:
            good.append(call)
    if not good:
        tell("unable", what="service time, batch invariance and isolation", why="no sample was answered well")
        return
    tell("step", what="service time")
    try:
        for row in service_times(runner, good):
            tell("service", **row)
    except WorkerDied as error:
        tell("unable", what="service time", why=f"the worker would die: {error}")
    tell("step", what="batch invariance")
    tell("invariance", **invariance(runner, good, slowest))
    tell("step", what="isolation")
    for result in isolation(runner, good):
        tell("isolation", **result)


def read_sample(sample: dict[str, Any]) -> tuple[str, Call]:
    """A sample of the job, by its name and as what a client posts."""
    return sample["name"], Call(base64.b64decode(sample["body"]), sample["content_type"])


def made_samples(handler: Any) -> list[tuple[str, Call]]:
    """The examples a BatchHandler warms up with, as requests; none for other handlers."""
    if not is_ours(handler):
        return []
    return [(f"example {place + 1}", _as_call(value)) for place, value in enumerate(handler.examples())]


def is_ours(handler: Any) -> bool:
    """Whether it is a BatchHandler, also that of a tsbatch which the archive brings (--bundle), a class apart."""
    return any((one.__module__, one.__name__) == ("tsbatch.handler", "BatchHandler") for one in type(handler).__mro__)


def _as_call(value: Any) -> Call:
    return Call(value) if isinstance(value, bytes) else Call({"inputs": value})


def ask(runner: HandlerRunner, name: str, call: Call) -> tuple[dict[str, Any], float]:
    """What one sample gets alone: its status and, when that is no 2xx, a short reason; and the seconds it took."""
    began = time.perf_counter()
    try:
        answer = runner.predict_one(call)
    except WorkerDied as error:
        return {"name": name, "status": 500, "reason": f"the worker would die: {error}"}, time.perf_counter() - began
    seconds = time.perf_counter() - began
    return {"name": name, "status": answer.status, "reason": None if answer.ok else reason_of(answer)}, seconds


def reason_of(answer: Answer) -> str:
    """Why an answer is none, in one line: the message of its JSON, or how its body begins."""
    try:
        body = json.loads(answer.body)
        error = body.get("error", body)
        said = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        said = answer.text
    return " ".join(str(said).split())[:SHOWN] or "an empty body"


def sizes_up_to(most: int) -> list[int]:
    """1, 2, 4 ... and ``most`` itself."""
    return [*itertools.takewhile(lambda size: size < most, (2**power for power in itertools.count())), most]


def service_times(runner: HandlerRunner, calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
    """For batches of 1, 2, 4 ... requests: the median and the slowest time, in seconds, and what an item costs."""
    endless = itertools.cycle(calls)
    for size in sizes_up_to(runner.batch_size):
        times: list[float] = []
        items = 0
        while len(times) < REPEATS or sum(times) < SECONDS_PER_SIZE:
            batch = list(itertools.islice(endless, size))
            began = time.perf_counter()
            runner.predict(batch)
            times.append(time.perf_counter() - began)
            items += _items(runner, size)
            if sum(times) > 4 * SECONDS_PER_SIZE:
                break
        yield {
            "batch": size,
            "seconds": statistics.median(times),
            "slowest": max(times),
            "per_item": statistics.median(times) * len(times) / max(items, 1),
            "repeats": len(times),
        }


def _items(runner: HandlerRunner, size: int) -> int:
    """Items in the last batch: what a BatchHandler counted, one a request for other handlers."""
    counted = [metric.value for metric in runner.metrics if metric.name == "BatchItems"]
    return int(sum(counted)) or size


def invariance(runner: HandlerRunner, calls: Sequence[Call], slowest: float) -> dict[str, Any]:
    """Whether each request gets the same answer in any company, within the tolerance of ``assert_batch_invariant``.

    Args:
        runner: the handler.
        calls: requests that are answered well.
        slowest: seconds that the slowest of them took alone; so many are compared that this stays a short check.
    """
    affordable = int(SECONDS_FOR_INVARIANCE / TIMES_ASKED / max(slowest, 1e-6))
    calls = calls[: max(2, min(MOST_COMPARED, affordable))]
    if len(calls) < 2:
        return {"holds": None, "compared": len(calls), "why": "one sample alone has no company; give two or more"}
    try:
        assert_batch_invariant(runner, calls)
    except AssertionError as error:
        return {"holds": False, "compared": len(calls), "why": " ".join(str(error).split())}
    except WorkerDied as error:
        return {"holds": False, "compared": len(calls), "why": f"the worker would die: {error}"}
    return {"holds": True, "compared": len(calls), "why": None}


def isolation(runner: HandlerRunner, calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
    """For each kind of broken request: what it gets among good ones, and what they get."""
    room = min(runner.batch_size, 8) - 1
    if room < 1:
        yield {"broken": None, "holds": None, "why": "a batch has one request alone", "status": None}
        return
    good = list(itertools.islice(itertools.cycle(calls), room))
    middle = room // 2
    for name, broken in BROKEN.items():
        try:
            answers = runner.predict([*good[:middle], broken, *good[middle:]])
        except WorkerDied as error:
            yield {"broken": name, "holds": False, "status": 500, "why": f"the worker would die: {error}"}
            continue
        status = answers[middle].status
        hurt = [answer for answer in answers[:middle] + answers[middle + 1 :] if not answer.ok]
        if hurt:
            why: str | None = f"{len(hurt)} of {room} good requests failed too: {reason_of(hurt[0])}"
            yield {"broken": name, "holds": False, "status": status, "why": why}
        else:
            refused = status >= 400
            why = None if refused else "the handler takes it"
            yield {"broken": name, "holds": True if refused else None, "status": status, "why": why}
