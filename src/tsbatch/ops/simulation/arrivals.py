"""What a simulation is fed with: drawn or recorded arrivals, and the clients of a closed loop."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from tsbatch.errors import UsageError
from tsbatch.ops.measure.arrivals import Arrivals, read_trace
from tsbatch.ops.measure.samples import Column

ROUND_TRIP: Final = 1.0
"""Ms until a client without thinking time that was refused sends again: a refusal takes a connection."""


def take(arrivals: Arrivals, count: int) -> Column:
    """The first ``count`` arrivals, or as many as a trace has; seconds."""
    return np.fromiter(itertools.islice(arrivals, count), dtype=np.float64)


def read_recorded(path: Path, model: str | None = None) -> Column:
    """Recorded arrivals, seconds from the first.

    Args:
        path: a result of ``tsbatch bench``, a log folder of a TorchServe or its ts_log.log, or a file with a time a
            line.
        model: for a log: which, as NAME or NAME/VERSION; the busiest when left out.

    Raises:
        UsageError: there are no times in it.
        OSError: it cannot be read.
    """
    if path.is_file() and path.suffix == ".json":
        from tsbatch.ops.measure.result import BenchResult

        runs = BenchResult.load(path).runs
        if not runs:
            raise UsageError(f"{path}: no run in it, so there are no arrivals")
        return _from_first(runs[-1].samples.sent)
    if path.is_dir() or path.name.startswith("ts_log"):
        from tsbatch.ops.diagnosis.sources import choose
        from tsbatch.ops.diagnosis.ts_log import read_log

        log = choose(read_log(path), model)
        if log.share < 1:
            raise UsageError(f"{path} holds {log.requests} requests, too many to keep; give a shorter log")
        return _from_first(log.samples().sent)
    return np.array(read_trace(path).times)


def _from_first(times: Column) -> Column:
    if not len(times):
        raise UsageError("no request was recorded, so there are no arrivals")
    ordered: Column = np.sort(times) - times.min()
    return ordered


def scaled(times: Column, factor: float, seed: int = 0) -> Column:
    """A recording with ``factor`` times as many requests in the same time, as that many more users would send them.

    Each request is there so many times on average; copies lie anywhere between it and the next one. Fewer requests are
    a random choice: that is what one of several machines gets. A factor of 1 changes nothing.

    Args:
        times: seconds, ascending, shape (n,).
        factor: positive.
        seed: of the random numbers.
    """
    if factor == 1:
        return times
    # Drawn copy by copy: a little more of the same is the same and a little more.
    random = np.random.default_rng(seed)
    copies = np.floor(factor + random.random(len(times))).astype(int)
    later = np.concatenate([np.zeros((1, len(times))), random.random((int(factor), len(times)))])
    chosen = np.repeat(np.arange(len(times)), copies)
    copy = np.arange(len(chosen)) - np.repeat(np.cumsum(copies) - copies, copies)
    gaps = np.diff(times, append=times[-1] if len(times) else 0.0)
    moved = times[chosen] + later[copy, chosen] * gaps[chosen]
    return np.sort(moved)


def rate_of(times: Column) -> float:
    """Requests a second of a recording; 0 when it is too short to tell."""
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    return (len(times) - 1) / span if span > 0 else 0.0


@dataclass
class Clients:
    """Clients of a closed loop: each sends its next request when it has its answer and has thought about it.

    Attributes:
        number: how many.
        requests: that they send together.
        think: ms that each thinks, on average.
        steady: whether thinking always takes as long; exponential otherwise.
        seed: of the random numbers.
    """

    number: int
    requests: int
    think: float = 0.0
    steady: bool = False
    seed: int = 0
    _left: int = field(default=0, init=False)
    _way: float = field(default=0.0, init=False)
    _random: np.random.Generator = field(default_factory=np.random.default_rng, init=False)

    def start(self, way: float) -> list[float]:
        """When each sends its first request, ms.

        Args:
            way: ms from the worker to the client and back to the queue.
        """
        self._left, self._way = self.requests, way
        self._random = np.random.default_rng(self.seed)
        return self._again([0.0] * self.number)

    def after_answers(self, answered: Sequence[float]) -> Sequence[float]:
        """When they send again; see :class:`tsbatch.ops.simulation.rules.Feedback`."""
        return self._again([time + self._way for time in answered])

    def after_refusal(self, at: float) -> float | None:
        """When one that was refused sends again."""
        again = self._again([at + max(self._way, ROUND_TRIP)])
        return again[0] if again else None

    def _again(self, times: list[float]) -> list[float]:
        times = times[: self._left]
        self._left -= len(times)
        if not self.think:
            return times
        thought = [self.think] * len(times) if self.steady else self._random.exponential(self.think, len(times))
        return [time + float(pause) for time, pause in zip(times, thought, strict=True)]
