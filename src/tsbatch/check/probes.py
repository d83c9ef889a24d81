"""Test a loaded handler with requests: each sample's answer, service time, batch invariance and isolation.

Runs in the process that loaded the archive, and sends every result as an event immediately.
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

Send = Callable[..., None]
"""Takes an event's name and its values."""

SECONDS_PER_SIZE = 1.5
REPEATS = 3
SECONDS_FOR_INVARIANCE = 20.0
MAX_COMPARED = 16
TIMES_ASKED = 16
"""How often the test of batch invariance sends each request: twice alone, and in batches of several sizes."""

MAX_REASON = 200
"""Characters of an answer that a reason quotes."""

BROKEN = {
    "truncated JSON": Call(b'{"inputs": ', "application/json"),
    "meaningless bytes": Call(bytes(range(128, 256)), "application/octet-stream"),
    "an empty body": Call(b"", "application/octet-stream"),
    "the wrong type": Call({"inputs": {"no": "such input"}}),
}
"""Requests that hardly any handler can interpret."""


def run(runner: HandlerRunner, job: dict[str, Any], send: Send) -> None:
    """Send the samples in every way, and report the results.

    Args:
        runner: the loaded handler.
        job: ``samples``: a list of ``{"name", "body" (base64), "content_type"}``, or None for the handler's examples.
        send: called with each result.
    """
    if job["samples"] is None:
        samples = example_samples(runner.handler)
    else:
        samples = [
            (each["name"], Call(base64.b64decode(each["body"]), each["content_type"])) for each in job["samples"]
        ]
    if not samples:
        send("unable", what="answers, service time, batch invariance and isolation", why="there are no samples")
        return
    good: list[Call] = []
    slowest = 0.0
    for name, call in samples:
        outcome, seconds = ask(runner, name, call)
        send("sample", **outcome, seconds=seconds)
        slowest = max(slowest, seconds)
        if 200 <= outcome["status"] < 300:
            good.append(call)
    if not good:
        send("unable", what="service time, batch invariance and isolation", why="no sample got a successful answer")
        return
    send("step", what="service time")
    try:
        for row in service_times(runner, good):
            send("service", **row)
    except WorkerDied as error:
        send("unable", what="service time", why=f"the worker would die: {error}")
    send("step", what="batch invariance")
    send("invariance", **invariance(runner, good, slowest))
    send("step", what="isolation")
    for result in isolation(runner, good):
        send("isolation", **result)


def example_samples(handler: Any) -> list[tuple[str, Call]]:
    """Return the examples that a BatchHandler warms up with as requests; none for other handlers."""
    examples = handler.examples() if is_batch_handler(handler) else []
    calls = [Call(value) if isinstance(value, bytes) else Call({"inputs": value}) for value in examples]
    return [(f"example {number}", call) for number, call in enumerate(calls, 1)]


def is_batch_handler(handler: Any) -> bool:
    """Return whether it is a BatchHandler, perhaps that of the archive's own tsbatch (--bundle), a different class."""
    names = [(base.__module__, base.__name__) for base in type(handler).__mro__]
    return ("tsbatch.handler", "BatchHandler") in names


def ask(runner: HandlerRunner, name: str, call: Call) -> tuple[dict[str, Any], float]:
    """Send one sample alone; return its name, its status, the reason if it failed, and the seconds it took."""
    started = time.perf_counter()
    try:
        answer = runner.predict_one(call)
        status, reason = answer.status, None if answer.ok else reason_of(answer)
    except WorkerDied as error:
        status, reason = 500, f"the worker would die: {error}"
    return {"name": name, "status": status, "reason": reason}, time.perf_counter() - started


def reason_of(answer: Answer) -> str:
    """Return why a request failed, in one line: the message in its JSON answer, or the beginning of the body."""
    try:
        body = json.loads(answer.body)
        error = body.get("error", body)
        reason = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        reason = answer.text
    return " ".join(str(reason).split())[:MAX_REASON] or "an empty body"


def sizes_up_to(maximum: int) -> list[int]:
    """Return 1, 2, 4 ... and ``maximum`` itself."""
    return [*itertools.takewhile(lambda size: size < maximum, (2**power for power in itertools.count())), maximum]


def service_times(runner: HandlerRunner, calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
    """Yield the median and the slowest time of batches of 1, 2, 4 ... requests, and the time per item, in seconds."""
    endless = itertools.cycle(calls)
    for size in sizes_up_to(runner.batch_size):
        times: list[float] = []
        items = 0
        while len(times) < REPEATS or sum(times) < SECONDS_PER_SIZE:
            batch = list(itertools.islice(endless, size))
            started = time.perf_counter()
            runner.predict(batch)
            times.append(time.perf_counter() - started)
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
    """Return the items in the last batch: as a BatchHandler counted them, or one per request for other handlers."""
    counted = [metric.value for metric in runner.metrics if metric.name == "BatchItems"]
    return int(sum(counted)) or size


def invariance(runner: HandlerRunner, calls: Sequence[Call], slowest: float) -> dict[str, Any]:
    """Test whether each request gets the same answer in any batch, within the tolerance of ``assert_batch_invariant``.

    Args:
        runner: the handler.
        calls: requests that are answered successfully.
        slowest: seconds that the slowest of them took alone; limits how many are compared, to keep the test short.
    """
    affordable = int(SECONDS_FOR_INVARIANCE / TIMES_ASKED / max(slowest, 1e-6))
    calls = calls[: max(2, min(MAX_COMPARED, affordable))]
    if len(calls) < 2:
        return {"holds": None, "compared": len(calls), "why": "needs at least two samples"}
    why: str | None = None
    try:
        assert_batch_invariant(runner, calls)
    except AssertionError as error:
        why = " ".join(str(error).split())
    except WorkerDied as error:
        why = f"the worker would die: {error}"
    return {"holds": why is None, "compared": len(calls), "why": why}


def isolation(runner: HandlerRunner, calls: Sequence[Call]) -> Iterator[dict[str, Any]]:
    """Test each kind of broken request among valid ones: its answer, and whether the others are answered."""
    count = min(runner.batch_size, 8) - 1
    if count < 1:
        yield {"broken": None, "holds": None, "why": "batches have only one request", "status": None}
        return
    good = list(itertools.islice(itertools.cycle(calls), count))
    middle = count // 2
    for name, broken in BROKEN.items():
        try:
            answers = runner.predict([*good[:middle], broken, *good[middle:]])
        except WorkerDied as error:
            yield {"broken": name, "holds": False, "status": 500, "why": f"the worker would die: {error}"}
            continue
        status = answers[middle].status
        hurt = [answer for answer in answers[:middle] + answers[middle + 1 :] if not answer.ok]
        holds: bool | None = True
        why = None
        if hurt:
            holds, why = False, f"{len(hurt)} of {count} valid requests failed too: {reason_of(hurt[0])}"
        elif status < 400:
            holds, why = None, "the handler accepts it"
        yield {"broken": name, "holds": holds, "status": status, "why": why}
