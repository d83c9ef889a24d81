"""Find the settings of a machine and the number of machines that a load needs, by simulation.

Each machine gets a random share of the requests, as from a stateless load balancer. For each settings of a grid the
planner searches the highest rate at which a machine still meets the goal. The number of machines follows for any rate.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tsbatch.bench.request_table import Column
from tsbatch.bench.send_times import Arrivals, Kind
from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import DEFAULT_QUEUE_SIZE, Settings
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.simulator import SECOND, Simulated, simulate
from tsbatch.simulation.workload import Clients, busiest, rate_of, scaled, shares, take

DELAYS: Final = (1, 2, 5, 10, 20, 50, 100, 200)
COARSE: Final = 5_000
"""Requests of a simulation that only ranks settings."""

FINE: Final = 50_000
FINALISTS: Final = 6
HALVINGS: Final = 8
"""Bisection steps of the search for the highest rate: to 0.4 % of the workers' capacity."""

SPARE: Final = 1.25
"""How much more of a trace is scaled than is simulated: the busiest part of the scaled trace is random."""

PAUSE: Final = 60.0
"""Seconds between the shares of a trace that are simulated together; every queue empties in that time."""

CACHED: Final = 32
"""Cached arrivals: the search tries settings with the same capacity at the same rates, one after the other."""

REFUSED: Final = 0.001
"""Share of requests that may be refused because the queue is full."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The arrivals at a machine, for any rate.

    Attributes:
        kind: arrival pattern of random requests.
        trace: recorded arrivals instead, in seconds, ascending from 0, shape (n,).
        seed: of the random numbers.
        origin: source of the recorded arrivals, in words.
    """

    kind: Kind = "poisson"
    trace: Column | None = None
    seed: int = 0
    origin: str = ""

    def at(self, rate: float, count: int) -> Column:
        """Return about ``count`` arrivals at a rate per second.

        From a trace, its busiest part of that length. If one machine's share has fewer, the shares of several machines
        follow each other: a few requests give no P99.
        """
        if self.trace is None:
            return take(Arrivals(self.kind, rate, self.seed), count)
        factor = rate / rate_of(self.trace)
        share = factor * len(self.trace)
        if share <= count:
            return shares(self.trace, factor, round(count / share), PAUSE, self.seed)
        # Scale only the simulated part: a whole day, many times over, needs much time and memory.
        stretch = busiest(self.trace, math.ceil(SPARE * count / factor) + 1)
        return busiest(scaled(stretch[:-1], factor, self.seed, end=float(stretch[-1])), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """The goal for every machine.

    Attributes:
        p99: maximum P99, in ms.
        headroom: additional load that must meet it too, as a share.
    """

    p99: float
    headroom: float = 0.1

    def met_by(self, simulated: Simulated) -> bool:
        """Return whether a simulation meets it."""
        return simulated.refused <= REFUSED and simulated.latency(0.99) <= self.p99


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the settings to try.

    Attributes:
        workers: maximum workers per machine.
        batch_size: maximum batch size.
        queue_size: jobQueueSize.
    """

    workers: int
    batch_size: int
    queue_size: int = DEFAULT_QUEUE_SIZE

    def grid(self, p99: float) -> Iterator[Settings]:
        """Yield all settings except those whose delay alone would miss the goal; batches of 1 need no delay."""
        sizes = sorted({*(2**power for power in range(self.batch_size.bit_length())), self.batch_size})
        delays = [delay for delay in DELAYS if delay < p99]
        for workers, size in itertools.product(range(1, self.workers + 1), sizes):
            for delay in delays if size > 1 else delays[:1]:
                yield Settings(workers=workers, batch_size=size, max_batch_delay=delay, queue_size=self.queue_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings of a machine and its capacity.

    Attributes:
        settings: of the machine.
        service: its service time with this number of workers.
        rate: the highest at which it meets the goal, in requests/s; 0 if it never does.
    """

    settings: Settings
    service: ServiceTime
    rate: float


class Planner:
    """Search the capacity of a machine with each settings, once for all rates, and the settings that a rate needs.

    Args:
        stream: the arrivals.
        services: measured service times, for one or several numbers of workers.
        goal: the goal.
        limits: which settings to try.
        fine: requests of the simulations whose figures are reported.
        tell: called with the number of settings that were just tried.
    """

    def __init__(
        self,
        stream: Stream,
        services: Sequence[ServiceTime],
        goal: Goal,
        limits: Limits,
        *,
        fine: int = FINE,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.stream, self.services, self.goal, self.limits = stream, services, goal, limits
        self.fine = fine
        self._tell = tell
        self._found: dict[tuple[Settings, int], float] = {}
        self._arrivals = functools.lru_cache(maxsize=CACHED)(stream.at)

    def candidates(self, rate: float) -> list[Candidate]:
        """Return the settings that need the fewest machines for ``rate``, or few more, the best first.

        Raises:
            UsageError: none meets the goal at any rate.
        """
        if self._alone > self.goal.p99:
            raise UsageError(self._never())
        wanted = rate * (1 + self.goal.headroom)

        def order(one: Candidate) -> tuple[float, int, float]:
            return machines_for(wanted, one.rate), one.settings.workers, -one.rate

        grid = self.limits.grid(self.goal.p99)
        left = [(settings, service_for(self.services, settings.workers)) for settings in grid]
        left.sort(key=lambda option: -capacity(*option))
        while left:
            # The skipped settings are tried if none of the better-looking ones is confirmed.
            found, left = self._ranked(left, wanted)
            if confirmed := self._confirmed(sorted(found, key=order)):
                self._tell(len(left))
                return sorted(confirmed, key=order)
        raise UsageError(self._never())

    def _ranked(
        self, options: Sequence[tuple[Settings, ServiceTime]], wanted: float
    ) -> tuple[list[Candidate], list[tuple[Settings, ServiceTime]]]:
        """Rank settings by short simulations, the highest capacity first; also return the skipped settings.

        Skipped are those that even at full capacity would need more machines than another one.
        """
        found: list[Candidate] = []
        left: list[tuple[Settings, ServiceTime]] = []
        best = 0.0
        for settings, service in options:
            if best and machines_for(wanted, capacity(settings, service)) > machines_for(wanted, best):
                left.append((settings, service))
                continue
            highest = self._highest(settings, service, min(COARSE, self.fine))
            best = max(best, highest)
            found.append(Candidate(settings=settings, service=service, rate=highest))
            self._tell(1)
        return found, left

    def _confirmed(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Return the best that meet the goal in long simulations too; few fail that a short one promised."""
        confirmed: list[Candidate] = []
        for index, one in enumerate(ranked):
            if confirmed and index >= FINALISTS:
                break
            rate = self._highest(one.settings, one.service, self.fine) if one.rate else 0.0
            if rate:
                confirmed.append(replace(one, rate=rate))
        return confirmed

    def simulate(self, candidate: Candidate, rate: float, count: int | None = None) -> Simulated:
        """Simulate one machine with these settings at a rate."""
        arrivals = self._arrivals(rate, count or self.fine)
        return simulate(candidate.settings, arrivals, candidate.service, seed=self.stream.seed)

    def highest_rate(self, settings: Settings, service: ServiceTime, count: int) -> float:
        """Return the highest rate at which a machine meets the goal, by bisection; 0 if a single request misses it."""
        alone = float(service.mean(1.0)) + service.overhead.of_batch(1) + service.overhead.frontend
        if alone + (settings.max_batch_delay if settings.batch_size > 1 else 0) > self.goal.p99:
            return 0.0
        candidate = Candidate(settings=settings, service=service, rate=0.0)
        low, high = 0.0, capacity(settings, service)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self.goal.met_by(self.simulate(candidate, middle, count)):
                low = middle
            else:
                high = middle
        return low

    def _highest(self, settings: Settings, service: ServiceTime, count: int) -> float:
        """Return :meth:`highest_rate`, computed once: it does not depend on the planned rate."""
        key = settings, count
        if key not in self._found:
            self._found[key] = self.highest_rate(settings, service, count)
        return self._found[key]

    @functools.cached_property
    def _alone(self) -> float:
        """P99 in ms of requests that never overlap; no settings can reduce it."""
        lonely = Clients(1, self.fine)
        services = [one.with_workers(1) for one in self.services]
        return min(simulate(Settings(), lonely, one, seed=self.stream.seed).latency(0.99) for one in services)

    def _never(self) -> str:
        return (
            f"no settings keep P99 within {self.goal.p99:g} ms: the P99 of requests that never wait is"
            f" {self._alone:.1f} ms; use a higher --p99, or a faster model"
        )


def capacity(settings: Settings, service: ServiceTime) -> float:
    """Return the requests/s of full batches without any pause: the upper bound."""
    items = settings.batch_size * float(np.mean(service.items))
    cycle = float(service.mean(items)) * float(np.mean(service.spread)) + service.overhead.of_batch(settings.batch_size)
    return settings.workers * settings.batch_size * SECOND / cycle


def machines_for(rate: float, each: float) -> int | float:
    """Return how many machines with a capacity of ``each`` are needed; infinity if it is 0."""
    return max(1, math.ceil(rate / each - 1e-9)) if each else math.inf


def service_for(services: Sequence[ServiceTime], workers: int) -> ServiceTime:
    """Return the service time with this number of workers, adapted from the nearest measured one."""
    nearest = min(services, key=lambda one: abs((one.machine.workers or workers) - workers))
    return nearest.with_workers(workers)
