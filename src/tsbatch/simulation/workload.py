"""What a simulation is fed with: drawn or recorded arrivals, and the clients of a closed loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tsbatch.bench.request_table import Column
from tsbatch.bench.send_times import Arrivals, read_trace
from tsbatch.errors import UsageError

ROUND_TRIP: Final = 1.0
"""Ms until a client without thinking time that was refused sends again: a refusal takes a connection."""


def take(arrivals: Arrivals, count: int) -> Column:
    """The first ``count`` arrivals, or as many as a trace has; seconds."""
    return np.fromiter(itertools.islice(arrivals, count), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded arrivals.

    Attributes:
        times: seconds from the first, ascending, shape (n,).
        origin: whose they are, in words.
    """

    times: Column
    origin: str

    def __str__(self) -> str:
        """Whose, how many, over how long."""
        return f"{self.origin}: {len(self.times)} requests in {self.times[-1]:.4g} s"


def read_recorded(path: Path, model: str | None = None) -> Recording:
    """Recorded arrivals.

    Args:
        path: a result of ``tsbatch bench``, whose last run counts; a log folder of a TorchServe or its ts_log.log; or a
            file with a time a line.
        model: for a log: which, as NAME or NAME/VERSION; the busiest when left out.

    Raises:
        UsageError: there are no times in it, or more requests than a log is kept of.
        OSError: it cannot be read.
    """
    if path.is_file() and path.suffix == ".json":
        return _of_bench(path)
    if path.is_dir() or path.name.startswith("ts_log"):
        from tsbatch.diagnosis.data_sources import choose
        from tsbatch.diagnosis.model_log import MOST_REQUESTS
        from tsbatch.diagnosis.ts_log import read_log

        log = choose(read_log(path), model)
        if log.share < 1:
            much = f"{log.requests} requests of {log.name}; expected at most {MOST_REQUESTS}"
            raise UsageError(f"{path} holds {much}: give a shorter log")
        return _from_first(log.samples().sent, f"{log.name}/{log.version} in {path}")
    return Recording(np.array(read_trace(path).times), str(path))


def _of_bench(path: Path) -> Recording:
    from tsbatch.bench.result_file import BenchResult

    result = BenchResult.load(path)
    if not result.runs:
        raise UsageError(f"{path}: no run in it, so there are no arrivals")
    run, count = result.runs[-1], len(result.runs)
    which = f"the last of {count} runs" if count > 1 else "the run"
    loop = result.plan.get("loop", "open")
    unit = "clients" if loop == "closed" else "requests/s"
    step = "" if run.step is None else f" of {run.step:g} {unit}"
    return _from_first(run.samples.sent, f"{which} of {path}, {loop} loop{step}")


def _from_first(times: Column, origin: str) -> Recording:
    if not len(times):
        raise UsageError("no request was recorded, so there are no arrivals")
    return Recording(np.sort(times) - times.min(), origin)


def scaled(times: Column, factor: float, seed: int = 0, *, end: float | None = None) -> Column:
    """A recording with ``factor`` times as many requests in the same time, as that many more users would send them.

    Each request is there so many times on average; copies lie anywhere between it and the next one. Fewer requests are
    a random choice: that is what one of several machines gets. A factor of 1 changes nothing.

    Args:
        times: seconds, ascending, shape (n,).
        factor: positive.
        seed: of the random numbers.
        end: until when copies of the last one may lie; where that itself is when left out.
    """
    if factor == 1:
        return times
    # Drawn copy by copy: a little more of the same is the same and a little more.
    random = np.random.default_rng(seed)
    copies = np.floor(factor + random.random(len(times))).astype(int)
    later = np.concatenate([np.zeros((1, len(times))), random.random((int(factor), len(times)))])
    chosen = np.repeat(np.arange(len(times)), copies)
    copy = np.arange(len(chosen)) - np.repeat(np.cumsum(copies) - copies, copies)
    if end is None:
        end = float(times[-1]) if len(times) else 0.0
    gaps = np.diff(times, append=end)
    moved = times[chosen] + later[copy, chosen] * gaps[chosen]
    return np.sort(moved)


def shares(times: Column, factor: float, machines: int, pause: float, seed: int = 0) -> Column:
    """What several machines get of a recording, one after the other, each as much as :func:`scaled` gives.

    The work grows with the requests that come out, however small each share is.

    Args:
        times: seconds, ascending from 0, shape (n,), n at least 2.
        factor: positive.
        machines: how many.
        pause: seconds between two of them.
        seed: of the random numbers.
    """
    random = np.random.default_rng(seed)
    places = machines * len(times)
    always = np.repeat(np.arange(places if factor >= 1 else 0), int(factor))
    chosen = np.sort(np.concatenate([always, _chosen(places, factor % 1, random)]))
    machine, row = np.divmod(chosen, len(times))
    copy = np.diff(chosen, prepend=-1) == 0
    # Copies of the last one would all lie in one moment, if another did not seem to follow as usual.
    end = float(times[-1]) + 1 / rate_of(times)
    moved = times[row] + copy * random.random(len(chosen)) * np.diff(times, append=end)[row]
    return np.sort(moved + machine * (end + pause))


def _chosen(count: int, share: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Each number below ``count`` with a probability of ``share``, ascending, by the distances between them."""
    if not share:
        return np.empty(0, dtype=np.int64)
    expected = count * share
    # Six standard deviations more than are expected.
    steps = random.geometric(share, int(expected + 6 * math.sqrt(expected)) + 20)
    numbers = np.cumsum(steps) - 1
    return numbers[numbers < count]


def busiest(times: Column, count: int) -> Column:
    """The ``count`` requests that came in the least time, from 0; all of them when there are no more.

    Args:
        times: seconds, ascending, shape (n,).
        count: at least 1.
    """
    begin = 0
    if len(times) > count:
        begin = int(np.argmin(times[count - 1 :] - times[: len(times) - count + 1]))
    stretch: Column = times[begin : begin + count] - times[begin]
    return stretch


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
        """When they send again; see :class:`tsbatch.simulation.batching_rules.Feedback`."""
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
