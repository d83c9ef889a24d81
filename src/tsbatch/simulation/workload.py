"""The load of a simulation: random or recorded arrivals, or the clients of a closed loop."""

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
"""Minimum ms until a refused client sends again: a refusal takes a connection."""


def take(arrivals: Arrivals, count: int) -> Column:
    """Return the first ``count`` arrivals, or all of a shorter trace, in seconds."""
    return np.fromiter(itertools.islice(arrivals, count), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded arrivals.

    Attributes:
        times: seconds from the first, ascending, shape (n,).
        origin: their source, in words.
    """

    times: Column
    origin: str

    def __str__(self) -> str:
        """Return the source, the number and the duration."""
        return f"{self.origin}: {len(self.times)} requests in {self.times[-1]:.4g} s"


def read_recorded(path: Path, model: str | None = None) -> Recording:
    """Read recorded arrivals.

    Args:
        path: a result of ``tsbatch bench``, of which the last run is read; a log directory of TorchServe or its
            ts_log.log; or a file with one time per line.
        model: in a log, as NAME or NAME/VERSION; by default the busiest.

    Raises:
        UsageError: it contains no times, or too many requests for a log.
        OSError: it cannot be read.
    """
    if path.is_file() and path.suffix == ".json":
        return _of_bench(path)
    if path.is_dir() or path.name.startswith("ts_log"):
        from tsbatch.diagnosis.data_sources import choose
        from tsbatch.diagnosis.model_log import MAX_REQUESTS
        from tsbatch.diagnosis.ts_log import read_log

        log = choose(read_log(path), model)
        if log.share < 1:
            raise UsageError(
                f"{path} has {log.requests} requests of {log.name}, more than {MAX_REQUESTS}; use a shorter log"
            )
        return _from_first(log.samples().sent, f"{log.name}/{log.version} in {path}")
    return Recording(np.array(read_trace(path).times), str(path))


def _of_bench(path: Path) -> Recording:
    from tsbatch.bench.result_file import BenchResult

    result = BenchResult.load(path)
    if not result.runs:
        raise UsageError(f"{path} has no runs, and so no arrivals")
    run, count = result.runs[-1], len(result.runs)
    which = f"the last of {count} runs" if count > 1 else "the run"
    loop = result.plan.get("loop", "open")
    unit = "clients" if loop == "closed" else "requests/s"
    step = "" if run.step is None else f" of {run.step:g} {unit}"
    return _from_first(run.samples.sent, f"{which} of {path}, {loop} loop{step}")


def _from_first(times: Column, origin: str) -> Recording:
    if not len(times):
        raise UsageError("no requests were recorded, so there are no arrivals")
    return Recording(np.sort(times) - times.min(), origin)


def scaled(times: Column, factor: float, seed: int = 0, *, end: float | None = None) -> Column:
    """Return ``factor`` times as many requests in the same time, as from that many times the users.

    Each request occurs ``factor`` times on average; copies lie anywhere between it and the next one. A factor below 1
    keeps a random subset: the share of one of several machines. A factor of 1 changes nothing.

    Args:
        times: seconds, ascending, shape (n,).
        factor: positive.
        seed: of the random numbers.
        end: latest time of the copies of the last request; by default its own.
    """
    if factor == 1:
        return times
    # Drawn copy by copy, so a slightly larger factor gives the same requests and a few more.
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
    """Return the shares of several machines one after the other, each as large as that of :func:`scaled`.

    The work grows with the number of returned requests, however small each share is.

    Args:
        times: seconds, ascending from 0, shape (n,), n at least 2.
        factor: positive.
        machines: number of machines.
        pause: seconds between two shares.
        seed: of the random numbers.
    """
    random = np.random.default_rng(seed)
    total = machines * len(times)
    always = np.repeat(np.arange(total if factor >= 1 else 0), int(factor))
    chosen = np.sort(np.concatenate([always, _chosen(total, factor % 1, random)]))
    machine, row = np.divmod(chosen, len(times))
    copy = np.diff(chosen, prepend=-1) == 0
    # Without an assumed next request all copies of the last one would be simultaneous.
    end = float(times[-1]) + 1 / rate_of(times)
    moved = times[row] + copy * random.random(len(chosen)) * np.diff(times, append=end)[row]
    return np.sort(moved + machine * (end + pause))


def _chosen(count: int, share: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Draw each number below ``count`` with a probability of ``share``, ascending, by their distances."""
    if not share:
        return np.empty(0, dtype=np.int64)
    expected = count * share
    # Six standard deviations more than expected.
    steps = random.geometric(share, int(expected + 6 * math.sqrt(expected)) + 20)
    numbers = np.cumsum(steps) - 1
    return numbers[numbers < count]


def busiest(times: Column, count: int) -> Column:
    """Return the ``count`` requests that arrived in the shortest time, from 0; all if there are no more.

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
    """Return the requests/s of a recording; 0 if it is too short."""
    span = float(times[-1] - times[0]) if len(times) > 1 else 0.0
    return (len(times) - 1) / span if span > 0 else 0.0


@dataclass
class Clients:
    """Clients of a closed loop: each sends its next request after the answer and its think time.

    Attributes:
        number: number of clients.
        requests: total number of requests.
        think: mean think time in ms.
        steady: whether the think time is constant rather than exponential.
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
        """Return when each client sends its first request, in ms.

        Args:
            way: ms from the worker to the client and back to the queue.
        """
        self._left, self._way = self.requests, way
        self._random = np.random.default_rng(self.seed)
        return self._again([0.0] * self.number)

    def after_answers(self, answered: Sequence[float]) -> Sequence[float]:
        """Return when they send again; see :class:`tsbatch.simulation.batching_rules.Feedback`."""
        return self._again([time + self._way for time in answered])

    def after_refusal(self, at: float) -> float | None:
        """Return when a refused client sends again."""
        again = self._again([at + max(self._way, ROUND_TRIP)])
        return again[0] if again else None

    def _again(self, times: list[float]) -> list[float]:
        times = times[: self._left]
        self._left -= len(times)
        if not self.think:
            return times
        thought = [self.think] * len(times) if self.steady else self._random.exponential(self.think, len(times))
        return [time + float(pause) for time, pause in zip(times, thought, strict=True)]
