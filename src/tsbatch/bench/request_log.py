"""Record each request of a load test in a few microseconds."""

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
NO_TIMING: Final = (UNKNOWN,) * (len(PARTS) + 2)
MAX_REASONS: Final = 50
"""Number of distinct failure reasons; all further ones are counted as "other"."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Live figures of a run since the previous progress report.

    Attributes:
        seconds: time since the load started, including warm-up.
        warm: whether the warm-up is over.
        done: requests answered so far; ``failed`` those of them without a 2xx.
        rate: answers per second.
        p50, p99: latency in ms; None without an answer.
        batch: mean size of the reported batches; ``capacity`` the batch size limit of the last one.
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
class RequestLog:
    """The requests of one run.

    Attributes:
        begin: start of the load, on the clock of ``time.monotonic``; ``start`` is the end of its warm-up, ``stop``
            the end of the load (infinite if it is not limited by time).
        answered: good answers received between ``start`` and ``stop``; ``items`` counts the model inputs in them.
        last: time of the last answer to a measured request.
        warm_up, warm_up_failed: requests of the warm-up, and failures among them.
        errors: number of failures by status and reason.
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
    _reported: float = 0.0

    def record(self, due: float, started: float, answer: Answer, items: int, length: int = 0) -> None:
        """Record a finished request.

        Args:
            due: when it was due; the latency counts from there.
            started: when the generator started on it.
            answer: the answer, or the failure.
            items: number of model inputs in the request.
            length: size of its body in bytes.
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
        timing = read_server_timing(header(answer.head, b"server-timing"))
        if timing[-2] > 0:  # not NaN
            self._batches.append(timing[-2])
            self._capacity = timing[-1]
        self._rows.extend((due + self.epoch, latency, answer.status, *timing, items, length))
        self._lateness.append((started - due) * 1000)
        self.last = max(self.last, answer.at)
        if not good:
            kind = (answer.status, failure_reason(answer))
            self.errors[
                kind if kind in self.errors or len(self.errors) < MAX_REASONS else (answer.status, "other")
            ] += 1

    def progress(self, now: float) -> Progress:
        """Return the figures since the previous call."""
        recent = sorted(self._recent)
        batches = self._batches[:]
        self._recent.clear()
        self._batches.clear()
        since, self._reported = now - (self._reported or self.begin), now
        return Progress(
            seconds=now - self.begin,
            warm=now >= self.start,
            done=self._done,
            failed=self._failed,
            rate=len(recent) / since if since > 0 else 0.0,
            p50=recent[len(recent) // 2] if recent else None,
            p99=recent[len(recent) * 99 // 100] if recent else None,
            # Each of a batch's requests reports it, so a batch of six appears six times.
            batch=len(batches) / sum(1 / size for size in batches) if batches else None,
            capacity=self._capacity,
        )

    def samples(self) -> Samples:
        """Return the measured requests, ordered by due time."""
        table = np.frombuffer(self._rows, dtype=np.float64).reshape(-1, len(RECORDED))
        table = table[np.argsort(table[:, 0], kind="stable")]
        return Samples(**{name: table[:, index].copy() for index, name in enumerate(RECORDED)})

    def lateness(self) -> dict[str, float]:
        """Return percentiles of how late the generator started on the requests, in ms."""
        if not self._lateness:
            return {}
        late = np.percentile(np.frombuffer(self._lateness), [50, 99, 100])
        return dict(zip(("p50", "p99", "max"), np.round(late, 3).tolist(), strict=True))

    def failures(self) -> list[dict[str, Any]]:
        """Return status, reason and count of each kind of failure, most frequent first."""
        return [
            {"status": status, "reason": reason, "count": count}
            for (status, reason), count in self.errors.most_common()
        ]


def read_server_timing(value: bytes) -> tuple[float, ...]:
    """Parse a Server-Timing header: the :data:`PARTS` in ms, then size and capacity of the batch.

    Missing values are NaN; a header with none of them gives :data:`NO_TIMING`.
    """
    if not value:
        return NO_TIMING
    parts = {name: float(duration) for name, duration in TIMING.findall(value) if duration.count(b".") < 2}
    batch = BATCH.search(value)
    size, capacity = (float(batch[1]), float(batch[2])) if batch else (UNKNOWN, UNKNOWN)
    values = (*(parts.get(name, UNKNOWN) for name in _PARTS), size, capacity)
    return NO_TIMING if all(one != one for one in values) else values


_PARTS: Final = tuple(name.encode() for name in PARTS)


def failure_reason(answer: Answer) -> str:
    """A short one-line reason for a failure, taken from TorchServe's or tsbatch's error body, without any payload."""
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
    # A request id would make each failure a kind of its own.
    return re.sub(r"\d{3,}|[0-9a-f]{8}-[0-9a-f-]{27}", "#", " ".join(": ".join(words).split()))[:160]
