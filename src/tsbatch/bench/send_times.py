"""Arrival times of an open loop, independent of any answer."""

from __future__ import annotations

import asyncio
import itertools
import select
import selectors
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tsbatch.errors import UsageError

Kind = Literal["poisson", "uniform", "bursts", "trace"]
CHUNK = 1024


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Times at which requests are sent.

    Attributes:
        kind: ``poisson`` for independent users, ``uniform`` for constant intervals, ``bursts`` for independent users
            who are active only in bursts, ``trace`` for ``times``.
        rate: mean requests/s, except for a trace.
        seed: seed of the random numbers.
        factor: rate inside a burst as a multiple of the mean; there are no requests outside bursts.
        burst: mean length of a burst in seconds; bursts and the pauses between them are exponential.
        times: seconds since the first request of a trace, ascending.
    """

    kind: Kind
    rate: float = 0.0
    seed: int = 0
    factor: float = 4.0
    burst: float = 0.25
    times: Sequence[float] = ()

    def __iter__(self) -> Iterator[float]:
        """Yield seconds since the start, endless except for a trace."""
        if self.kind == "trace":
            return iter(self.times)
        if self.kind == "uniform":
            return (number / self.rate for number in itertools.count())
        return self._bursts() if self.kind == "bursts" else self._poisson(self.rate)

    def _poisson(self, rate: float) -> Iterator[float]:
        random = np.random.default_rng(self.seed)
        now = 0.0
        while True:
            times = now + random.exponential(1 / rate, CHUNK).cumsum()
            yield from times.tolist()
            now = float(times[-1])

    def _bursts(self) -> Iterator[float]:
        """Yield an interrupted Poisson process: a Poisson stream whose clock is stopped in the pauses."""
        random = np.random.default_rng((self.seed, 1))
        pause = self.burst * (self.factor - 1)
        breaks, end = 0.0, random.exponential(self.burst)
        for time in self._poisson(self.rate * self.factor):
            while time > end:
                breaks += random.exponential(pause)
                end += random.exponential(self.burst)
            yield time + breaks


def read_trace(path: Path) -> Arrivals:
    """Read a trace: one time per line, in seconds or ISO 8601, in any order; empty lines and ``#`` are skipped.

    Raises:
        UsageError: a line is not a time, or there is none.
        OSError: it cannot be read.
    """
    times = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            times.append(_time(text, f"{path}, line {number}"))
    if not times:
        raise UsageError(f"{path} has no times; expected one per line, in seconds or like 2026-01-02T03:04:05.678")
    times.sort()
    return Arrivals("trace", times=[time - times[0] for time in times])


def _time(text: str, where: str) -> float:
    try:
        time = float(text)
    except ValueError:
        try:
            time = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
        except ValueError:
            time = float("nan")
    if not np.isfinite(time):
        raise UsageError(f"{where}: {text[:40]!r} is not a time; expected seconds, or one like 2026-01-02T03:04:05.678")
    return time


def punctual_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with microsecond precision where asyncio rounds up to milliseconds (Linux)."""
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()

    class Punctual(selectors.EpollSelector):
        """Waits with select on epoll's descriptor, because epoll itself only waits for whole milliseconds."""

        def select(self, timeout: float | None = None) -> list[Any]:
            """Wait with select, then poll epoll."""
            if timeout is not None and timeout > 0:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

    return asyncio.SelectorEventLoop(Punctual())
