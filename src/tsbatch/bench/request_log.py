"""What the load generator writes down of each request, in a few microseconds."""

from __future__ import annotations

import re
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson

from tsbatch.bench.http_client import Answer, header
from tsbatch.bench.request_table import STAGES, WAITS, Samples

PARTS: Final = (*WAITS, *STAGES)
RECORDED: Final = ("sent", "latency", "status", *PARTS, "batch", "capacity", "items", "length")
TIMING: Final = re.compile(rb'([\w-]+)(?:;\s*desc=(?:"[^"]*"|[^;,]*))?;\s*dur=([0-9.]+)')
BATCH: Final = re.compile(rb'batch;(?:[^,]*;)?\s*desc="?(\d+)/(\d+)')
UNKNOWN: Final = float("nan")
NOTHING_TOLD: Final = (UNKNOWN,) * (len(PARTS) + 2)
REASONS: Final = 50
"""Kinds of failure that are told apart; the rest is one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How a run goes: what happened since the last time it was told.

    Attributes:
        seconds: since the load began, its warm-up included.
        warm: whether the warm-up is over.
        done: requests answered so far, good or bad; ``failed`` those that were not good.
        rate: answers a second.
        p50, p99: latency in ms; None without an answer.
        batch: mean size of the batches that answers told of; ``capacity`` what the last of them could hold.
    """

    seconds: float
    warm: bool
    done: int
    failed: int
    rate: float
    p50: float | None
    p99: float | None
    batch: float | None
    capacity: float | None


@dataclass(slots=True)
class Ledger:
    """The requests of one run.

    Attributes:
        begin: when the load began, on the clock of ``time.monotonic``; ``start`` when its warm-up was over, ``stop``
            when it ends (infinite when something else ends it).
        answered: good answers that came between the two; ``items`` of the model in them.
        last: when the last answer to a request of that time came.
        warm_up, warm_up_failed: requests before it.
        errors: failures by status and reason.
    """

    begin: float
    start: float
    stop: float
    epoch: float = field(default_factory=lambda: time.time() - time.monotonic())
    answered: int = 0
    items: int = 0
    last: float = 0.0
    warm_up: int = 0
    warm_up_failed: int = 0
    errors: Counter[tuple[int, str]] = field(default_factory=Counter)
    _rows: array[float] = field(default_factory=lambda: array("d"))
    _lateness: array[float] = field(default_factory=lambda: array("d"))
    _recent: list[float] = field(default_factory=list)
    _batches: list[float] = field(default_factory=list)
    _capacity: float | None = None
    _done: int = 0
    _failed: int = 0
    _told: float = 0.0

    def note(self, due: float, begun: float, answer: Answer, items: int, length: int = 0) -> None:
        """One request is over.

        Args:
            due: when it was to be sent; the latency counts from there.
            begun: when the generator turned to it.
            answer: what came.
            items: inputs of the model in it.
            length: bytes of its body.
        """
        latency = (answer.at - due) * 1000
        good = 200 <= answer.status < 300
        self._done += 1
        self._failed += not good
        self._recent.append(latency)
        if good and self.start <= answer.at < self.stop:
            self.answered += 1
            self.items += items
        if due < self.start:
            self.warm_up += 1
            self.warm_up_failed += not good
            return
        told = read_server_timing(header(answer.head, b"server-timing"))
        if told is not NOTHING_TOLD:
            self._tell_batch(told[-2], told[-1])
        self._rows.extend((due + self.epoch, latency, answer.status, *told, items, length))
        self._lateness.append((begun - due) * 1000)
        self.last = max(self.last, answer.at)
        if not good:
            kind = (answer.status, reason_of(answer))
            self.errors[kind if kind in self.errors or len(self.errors) < REASONS else (answer.status, "other")] += 1

    def progress(self, now: float) -> Progress:
        """What happened since this was last asked."""
        recent = sorted(self._recent)
        batches = self._batches[:]
        self._recent.clear()
        self._batches.clear()
        since, self._told = now - (self._told or self.begin), now
        return Progress(
            seconds=now - self.begin,
            warm=now >= self.start,
            done=self._done,
            failed=self._failed,
            rate=len(recent) / since if since > 0 else 0.0,
            p50=recent[len(recent) // 2] if recent else None,
            p99=recent[len(recent) * 99 // 100] if recent else None,
            # A batch of six is told of six times.
            batch=len(batches) / sum(1 / size for size in batches) if batches else None,
            capacity=self._capacity,
        )

    def _tell_batch(self, size: float, capacity: float) -> None:
        if size > 0:  # not NaN
            self._batches.append(size)
            self._capacity = capacity

    def samples(self) -> Samples:
        """The requests of the measured time, in the order in which they were to be sent."""
        table = np.frombuffer(self._rows, dtype=np.float64).reshape(-1, len(RECORDED))
        table = table[np.argsort(table[:, 0], kind="stable")]
        return Samples(**{name: table[:, place].copy() for place, name in enumerate(RECORDED)})

    def lateness(self) -> dict[str, float]:
        """How much later than due the generator turned to the requests, in ms."""
        if not self._lateness:
            return {}
        late = np.percentile(np.frombuffer(self._lateness), [50, 99, 100])
        return dict(zip(("p50", "p99", "max"), np.round(late, 3).tolist(), strict=True))

    def failures(self) -> list[dict[str, Any]]:
        """Status, reason and count of each kind of failure, most frequent first."""
        return [
            {"status": status, "reason": reason, "count": count}
            for (status, reason), count in self.errors.most_common()
        ]


def read_server_timing(value: bytes) -> tuple[float, ...]:
    """The parts of a Server-Timing header in ms, in the order of :data:`PARTS`; then size and capacity of the batch.

    :data:`NOTHING_TOLD` when it has none of them; NaN for what is missing.
    """
    if not value:
        return NOTHING_TOLD
    parts = {name: float(duration) for name, duration in TIMING.findall(value) if duration.count(b".") < 2}
    batch = BATCH.search(value)
    size, capacity = (float(batch[1]), float(batch[2])) if batch else (UNKNOWN, UNKNOWN)
    told = (*(parts.get(name, UNKNOWN) for name in _PARTS), size, capacity)
    return NOTHING_TOLD if all(one != one for one in told) else told


_PARTS: Final = tuple(name.encode() for name in PARTS)


def reason_of(answer: Answer) -> str:
    """Why a request failed, as TorchServe's or tsbatch's body says it; short, on one line, and without a payload."""
    if answer.reason:
        return answer.reason
    try:
        body = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return answer.head.partition(b"\r\n")[0][13:].decode("latin-1").strip()
    body = body if isinstance(body, dict) else {}
    inner = body.get("error")
    found = inner if isinstance(inner, dict) else body
    words = [str(found[key]) for key in ("type", "code", "message") if isinstance(found.get(key), str)]
    # What identifies a request would make each failure a kind of its own.
    return re.sub(r"\d{3,}|[0-9a-f]{8}-[0-9a-f-]{27}", "#", " ".join(": ".join(words).split()))[:160]
