"""The timing record of a batch, from which headers, metrics and reports are derived.

::

    arrival          worker free        hand-over                                   answer
       │── queue wait ──│─ assembly wait ─│─ decode ─ preprocess ─ inference ─ ... ─│
                                          └────────────── handler time ─────────────┘

The arrival is the time that the client or proxy wrote into ``X-Request-Start``. The worker became free when it had
answered its previous batch, or when the first request of this batch arrived if that was later: from then on, the batch
was being assembled (TorchServe counts max_batch_delay from there, frontend/server/.../wlm/Model.java). There is no gap
between stages, so they add up to the handler time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from tsbatch.protocol.request import Request

STAGES: Final = ("decode", "preprocess", "inference", "postprocess", "encode")
REQUEST_START: Final = "x-request-start"
MAX_START_AGE: Final = 3600.0
"""Seconds; an older X-Request-Start is stale and is ignored."""


@dataclass(slots=True)
class BatchRecord:
    """The timings of one batch, in seconds, and its contents.

    Attributes:
        size: requests in the batch.
        capacity: the maximum number of requests (batchSize).
        handed_over: when the batch reached the handler, seconds since the epoch.
        free_since: when this worker had answered its previous batch, or None for the first.
        arrivals: the arrival of each request; None if the client did not send it.
        stages: seconds spent in each stage.
        items, features, micro_batches, forward_passes: how the work was divided. There are more passes than
            micro-batches if a failing one had to be split.
        length, padded_length: the total length of the features without and with padding; 0 without lengths.
        failures: number of failed requests by error code.
    """

    size: int
    capacity: int
    handed_over: float
    free_since: float | None = None
    arrivals: Sequence[float | None] = ()
    stages: dict[str, float] = field(default_factory=dict)
    items: int = 0
    features: int = 0
    micro_batches: int = 0
    forward_passes: int = 0
    length: int = 0
    padded_length: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    _started: float = field(default_factory=time.perf_counter)
    _marked: float = 0.0

    def __post_init__(self) -> None:
        self._marked = self._started

    @classmethod
    def begin(cls, requests: Sequence[Request], capacity: int, free_since: float | None) -> BatchRecord:
        """Create the record of a batch that was just handed over."""
        return cls(
            size=len(requests),
            capacity=max(capacity, len(requests)),
            handed_over=time.time(),
            free_since=free_since,
            arrivals=[request.arrival for request in requests],
        )

    @property
    def ended(self) -> float:
        """When the last stage ended, seconds since the epoch."""
        return self.handed_over + self.handler_time

    def mark(self, stage: str) -> None:
        """End ``stage`` now; the next one starts at the same moment."""
        now = time.perf_counter()
        self.stages[stage] = self.stages.get(stage, 0.0) + now - self._marked
        self._marked = now

    @property
    def handler_time(self) -> float:
        """Seconds from the hand-over to the end of the last stage that was marked."""
        return self._marked - self._started

    @property
    def padding_waste(self) -> float | None:
        """Fraction of the computed length that was padding, 0 to 1; None if the task has no lengths."""
        return 1 - self.length / self.padded_length if self.padded_length else None

    def waits(self) -> list[tuple[float, float] | None]:
        """Return the queue wait and assembly wait of each request in seconds; None if the arrival is unknown."""
        known = [arrival for arrival in self.arrivals if arrival is not None]
        if not known:
            return [None] * self.size
        assembling_since = max(min(known), self.free_since or 0.0)
        assembling_since = min(assembling_since, self.handed_over)
        return [
            None
            if arrival is None
            else (
                max(0.0, assembling_since - arrival),
                max(0.0, self.handed_over - max(assembling_since, arrival)),
            )
            for arrival in self.arrivals
        ]


def parse_request_start(value: str | None, now: float) -> float | None:
    """Parse an ``X-Request-Start`` header into seconds since the epoch.

    Proxies write seconds, milliseconds or microseconds, with or without ``t=``; the magnitude tells them apart. Values
    that cannot be read, lie in the future or are over an hour old give None, because a wrong arrival would spoil every
    figure derived from it.
    """
    if not value:
        return None
    try:
        stamp = float(value.strip().removeprefix("t="))
    except ValueError:
        return None
    for divisor in (1.0, 1e3, 1e6):
        if now - MAX_START_AGE <= stamp / divisor <= now:
            return stamp / divisor
    return None


def server_timings(record: BatchRecord) -> list[str]:
    """Return the ``Server-Timing`` value of each request (W3C Server Timing; durations in milliseconds)."""
    handler = _entry("handler", record.handler_time)
    stages = ", ".join(_entry(stage, record.stages.get(stage, 0.0)) for stage in STAGES)
    common = f'{handler}, {stages}, batch;desc="{record.size}/{record.capacity}"'
    return [
        common if wait is None else f"{_entry('queue', wait[0])}, {_entry('assembly', wait[1])}, {common}"
        for wait in record.waits()
    ]


def _entry(name: str, seconds: float) -> str:
    return f"{name};dur={seconds * 1000:.3f}"


class MetricSink(Protocol):
    """The destination of metrics: TorchServe's metric cache, or a list in a test."""

    knows_ours: bool
    """Whether the server's metrics.yaml contains the metrics of tsbatch; the server drops them otherwise."""

    def count(self, name: str, value: float, dimensions: Mapping[str, str]) -> None:
        """Add ``value`` to the counter ``name``."""

    def gauge(self, name: str, value: float, unit: str) -> None:
        """Set the gauge ``name``."""


COUNTERS: Final = {
    "BatchRequests": "requests handed over",
    "BatchItems": "items in them",
    "BatchFeatures": "features computed",
    "MicroBatches": "forward passes planned",
    "QueueWaitTime": "milliseconds, summed over the requests with a known arrival",
    "AssemblyWaitTime": "milliseconds, summed over the same requests",
    "TimedRequests": "requests with a known arrival; divide the two sums by this",
    "DecodeTime": "milliseconds of the stage",
    "PreprocessTime": "milliseconds of the stage",
    "InferenceTime": "milliseconds of the stage",
    "PostprocessTime": "milliseconds of the stage",
    "EncodeTime": "milliseconds of the stage",
    "FailedRequests": "requests answered with an error, by Cause",
}
"""Counters: each log line is the share of one batch, Prometheus has the total, so means over any interval are exact.
They carry the first request id of the batch; HandlerTime carries all ids."""
GAUGES: Final = {
    "HandlerTime": "milliseconds of the batch, as TorchServe's own handlers emit it",
    "PaddingWaste": "percent of the computed length that was padding",
}


def emit(record: BatchRecord, sink: MetricSink, *, everything: bool | Literal["auto"]) -> None:
    """Emit the metrics of one batch; the names are in :data:`COUNTERS` and :data:`GAUGES`.

    Args:
        record: a finished batch.
        sink: where to send them.
        everything: False for HandlerTime only, which TorchServe's own tools read; ``auto`` for all metrics if the
            server does not drop them.
    """
    sink.gauge("HandlerTime", _milliseconds(record.handler_time), "ms")
    if not (sink.knows_ours if everything == "auto" else everything):
        return
    for name, value in _counts(record):
        sink.count(name, value, {})
    waste = record.padding_waste
    if waste is not None:
        sink.gauge("PaddingWaste", round(100 * waste, 2), "percent")
    for cause, number in record.failures.items():
        sink.count("FailedRequests", number, {"Cause": cause})


def _counts(record: BatchRecord) -> Iterable[tuple[str, float]]:
    yield "BatchRequests", record.size
    yield "BatchItems", record.items
    yield "BatchFeatures", record.features
    yield "MicroBatches", record.micro_batches
    waits = [wait for wait in record.waits() if wait is not None]
    if waits:
        yield "TimedRequests", len(waits)
        yield "QueueWaitTime", _milliseconds(sum(queue for queue, _ in waits))
        yield "AssemblyWaitTime", _milliseconds(sum(assembly for _, assembly in waits))
    for stage in STAGES:
        yield f"{stage.capitalize()}Time", _milliseconds(record.stages.get(stage, 0.0))


def _milliseconds(seconds: float) -> float:
    # Fixed notation: TorchServe's pattern for metric values (Metric.java) rejects 1e+16 and nan.
    return round(seconds * 1000, 3)
