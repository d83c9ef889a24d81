"""Where the time of the requests went: as a whole, among the slowest, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tsbatch.bench.request_table import STAGES, WAITS, Column, Samples

OUTSIDE: Final = "outside"
"""What none of the three covers: the way to the worker and back, writing the answer, and from a client the network."""

PARTS: Final = (*WAITS, OUTSIDE)
SLOWEST: Final = 0.01
WINDOWS: Final = 12


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the latency over all good answers, in ms.

    Attributes:
        name: queue, assembly, handler, outside, or latency for the whole.
        mean: its mean.
        share: of the mean latency, 0 to 1.
        p50, p99: its own percentiles; None where only means are known.
        slowest: its mean among the slowest hundredth of the requests; None where only means are known.
    """

    name: str
    mean: float
    share: float
    p50: float | None = None
    p99: float | None = None
    slowest: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time. ``begin`` is seconds since the first request, ``rate`` requests/s, the rest means in ms.

    Attributes:
        begin, seconds: when, and how long.
        rate: good answers a second.
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
    """The parts, the handler's stages where they are known, and the stretches of time."""

    parts: Sequence[Part]
    stages: Sequence[Part] = ()
    windows: Sequence[Window] = ()

    def part(self, name: str) -> Part:
        """The part of that name.

        Raises:
            KeyError: there is none.
        """
        return {part.name: part for part in (*self.parts, *self.stages)}[name]


def split(samples: Samples, *, share: float = 1.0, windows: int = WINDOWS) -> Split:
    """Where the time went.

    Args:
        samples: the requests.
        share: how much of all requests they are, for the rates.
        windows: into how many stretches of time to cut.
    """
    good = samples.where(samples.ok & ~np.isnan(samples.handler))
    columns = parts_of(good)
    slow = _slowest(good.latency)
    whole = float(good.latency.mean()) if len(good) else 0.0
    stages = {name: getattr(good, name) for name in STAGES if not np.isnan(getattr(good, name)).all()}
    return Split(
        parts=[_part(name, values, whole, slow) for name, values in columns.items()],
        stages=[_part(name, values, whole, slow) for name, values in stages.items() if len(good)],
        windows=_over_time(samples, share, windows),
    )


def parts_of(samples: Samples) -> dict[str, Column]:
    """Each request's parts and latency, ms; what is outside is never below 0."""
    known = samples.queue + samples.assembly + samples.handler
    outside = np.maximum(0.0, samples.latency - known)
    waits = {name: getattr(samples, name) for name in WAITS}
    return {**waits, OUTSIDE: outside, "latency": samples.latency}


def _slowest(latency: Column) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    edge = np.quantile(latency, 1 - SLOWEST) if len(latency) else 0.0
    slow: np.ndarray[tuple[int], np.dtype[np.bool_]] = latency >= edge
    return slow


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
    begin, end = float(samples.sent.min()), float(samples.sent.max())
    width = (end - begin) / count
    if width <= 0:
        return []
    place = np.minimum(((samples.sent - begin) / width).astype(int), count - 1)
    columns = parts_of(samples)
    good = samples.ok & ~np.isnan(samples.handler)
    found = []
    for number in range(count):
        here = place == number
        if not here.any():
            continue
        fine = here & good
        answered = int(fine.sum())
        means = {name: float(columns[name][fine].mean()) if answered else 0.0 for name in PARTS}
        p99 = float(np.quantile(samples.latency[fine], 0.99)) if answered else 0.0
        failed = 1 - float(samples.ok[here].mean())
        found.append(Window(number * width, width, answered / width / share, **means, p99=p99, failed=failed))
    return found
