"""Latency breakdown: over all requests, among the slowest, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tsbatch.bench.request_table import STAGES, WAITS, Column, Samples

OUTSIDE: Final = "outside"
"""The rest of the latency: transfer to the worker and back, writing the answer, and, seen by a client, the network."""

PARTS: Final = (*WAITS, OUTSIDE)
SLOWEST: Final = 0.01
WINDOWS: Final = 12


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the latency over all good answers, in ms.

    Attributes:
        name: queue, assembly, handler, outside, or latency for all of them.
        mean: its mean.
        share: its share of the mean latency, 0 to 1.
        p50, p99: its percentiles; None if only means are known.
        slowest: its mean among the slowest 1 % of the requests; None if only means are known.
    """

    name: str
    mean: float
    share: float
    p50: float | None = None
    p99: float | None = None
    slowest: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A time window. ``begin`` is in seconds since the first request, ``rate`` in requests/s, the rest are means in ms.

    Attributes:
        begin, seconds: start and length.
        rate: good answers per second.
        queue, assembly, handler, outside: mean of each part.
        p99: of the latency.
        failed: share of requests without a good answer.
    """

    begin: float
    seconds: float
    rate: float
    queue: float
    assembly: float
    handler: float
    outside: float
    p99: float
    failed: float


@dataclass(frozen=True, slots=True)
class Split:
    """The parts of the latency, the handler's stages if known, and the time windows."""

    parts: Sequence[Part]
    stages: Sequence[Part] = ()
    windows: Sequence[Window] = ()

    def part(self, name: str) -> Part:
        """Return the part with this name.

        Raises:
            KeyError: there is none.
        """
        return {part.name: part for part in (*self.parts, *self.stages)}[name]


def split(samples: Samples, *, share: float = 1.0, windows: int = WINDOWS) -> Split:
    """Return the latency breakdown.

    Args:
        samples: the requests.
        share: share of all requests that they are, for the rates.
        windows: number of time windows.
    """
    good = samples.where(samples.ok & ~np.isnan(samples.handler))
    mean = float(good.latency.mean()) if len(good) else 0.0
    slow = good.latency >= np.quantile(good.latency, 1 - SLOWEST) if len(good) else np.empty(0, dtype=np.bool_)
    stages = {name: getattr(good, name) for name in STAGES if not np.isnan(getattr(good, name)).all()}
    return Split(
        parts=[_part(name, values, mean, slow) for name, values in parts_of(good).items()],
        stages=[_part(name, values, mean, slow) for name, values in stages.items() if len(good)],
        windows=_over_time(samples, share, windows),
    )


def parts_of(samples: Samples) -> dict[str, Column]:
    """Return the parts and the latency of each request, ms; ``outside`` is at least 0."""
    known = samples.queue + samples.assembly + samples.handler
    outside = np.maximum(0.0, samples.latency - known)
    waits = {name: getattr(samples, name) for name in WAITS}
    return {**waits, OUTSIDE: outside, "latency": samples.latency}


def _part(name: str, values: Column, whole: float, slow: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Part:
    if not len(values):
        return Part(name, 0.0, 0.0)
    mean = float(np.nanmean(values))
    p50, p99 = (float(one) for one in np.nanquantile(values, (0.5, 0.99)))
    among = values[slow]
    slowest = None if np.isnan(among).all() else float(np.nanmean(among))
    return Part(name, mean, mean / whole if whole else 0.0, p50, p99, slowest)


def _over_time(samples: Samples, share: float, count: int) -> list[Window]:
    if len(samples) < 2:
        return []
    since = samples.sent - samples.sent.min()
    width = float(since.max()) / count
    if width <= 0:
        return []
    window = np.minimum((since / width).astype(int), count - 1)
    columns = parts_of(samples)
    good = samples.ok & ~np.isnan(samples.handler)
    found = []
    for number in np.unique(window).tolist():
        here = window == number
        answered = here & good
        n = int(answered.sum())
        means = {name: float(columns[name][answered].mean()) if n else 0.0 for name in PARTS}
        p99 = float(np.quantile(samples.latency[answered], 0.99)) if n else 0.0
        failed = 1 - float(samples.ok[here].mean())
        found.append(Window(number * width, width, n / width / share, **means, p99=p99, failed=failed))
    return found
