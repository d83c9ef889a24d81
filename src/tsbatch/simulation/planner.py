"""What is needed for a load: settings of one machine, and how many machines, by simulation.

Each machine gets a random share of the requests, as a load balancer without memory deals them out. The settings are
those of a grid; for each the highest rate is sought at which a machine still keeps the goal. The number of machines
follows, whatever the load is multiplied by.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
"""Of the range in which the highest rate lies: to 0.4 % of what the workers could do at most."""

SPARE: Final = 1.25
"""So much more of a trace is scaled than is simulated: chance decides where the scaled stretch is busiest."""

PAUSE: Final = 60.0
"""Seconds between the shares of a trace that are simulated together, in which every queue runs empty."""

KEPT: Final = 32
"""Streams that are kept: settings with the same capacity are sought at the same rates, one after the other."""

REFUSED: Final = 0.001
"""Share of requests that may find the queue full."""


@dataclass(frozen=True, slots=True)
class Stream:
    """The requests that a machine gets, for any rate.

    Attributes:
        kind: how drawn requests follow each other.
        trace: recorded ones instead, in seconds, ascending from 0, shape (n,).
        seed: of the random numbers.
        origin: whose recorded ones they are, in words.
    """

    kind: Kind = "poisson"
    trace: Column | None = None
    seed: int = 0
    origin: str = ""

    def at(self, rate: float, count: int) -> Column:
        """Arrivals at a rate a second, about ``count``.

        Of a trace those of its busiest stretch of that length. Where a machine's share has fewer, the shares of as many
        machines as it takes, one after the other: a few requests tell no P99.
        """
        if self.trace is None:
            return take(Arrivals(self.kind, rate, self.seed), count)
        factor = rate / rate_of(self.trace)
        share = factor * len(self.trace)
        if share <= count:
            return shares(self.trace, factor, round(count / share), PAUSE, self.seed)
        # Only what is simulated is scaled: a day of recorded times, many times over, takes long and much memory.
        stretch = busiest(self.trace, math.ceil(SPARE * count / factor) + 1)
        return busiest(scaled(stretch[:-1], factor, self.seed, end=float(stretch[-1])), count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What every machine must keep.

    Attributes:
        p99: the most that P99 may be, ms.
        headroom: so much more load must be kept too, as a share.
    """

    p99: float
    headroom: float = 0.1

    def kept_by(self, simulated: Simulated) -> bool:
        """Whether a simulation keeps it."""
        return simulated.refused <= REFUSED and simulated.latency(0.99) <= self.p99


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which settings are tried.

    Attributes:
        workers: the most workers of a machine.
        batch_size: the largest batch size.
        queue_size: jobQueueSize.
    """

    workers: int
    batch_size: int
    queue_size: int = DEFAULT_QUEUE_SIZE

    def grid(self, p99: float) -> Iterator[Settings]:
        """Every setting but those whose delay alone would break the goal; a batch of 1 has no use for one."""
        sizes = sorted({*(2**power for power in range(self.batch_size.bit_length())), self.batch_size})
        delays = [delay for delay in DELAYS if delay < p99]
        for workers, size in itertools.product(range(1, self.workers + 1), sizes):
            for delay in delays if size > 1 else delays[:1]:
                yield Settings(workers=workers, batch_size=size, max_batch_delay=delay, queue_size=self.queue_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Settings and what a machine with them can do.

    Attributes:
        settings: of the machine.
        service: its service time with so many workers.
        rate: the highest at which it keeps the goal, requests a second; 0 when it never does.
    """

    settings: Settings
    service: ServiceTime
    rate: float


class Planner:
    """Seeks what a machine can do with each setting, once for all rates, and which settings a rate needs.

    Args:
        stream: how requests come.
        services: measured service times, for one or several numbers of workers.
        goal: what to keep.
        limits: which settings to try.
        fine: requests of the simulations whose figures are told.
        tell: told each time some settings were tried, with how many.
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
        self._sought: dict[tuple[Settings, int], float] = {}
        self._arrivals = functools.lru_cache(maxsize=KEPT)(stream.at)

    def candidates(self, rate: float) -> list[Candidate]:
        """The settings that need the fewest machines for ``rate`` or hardly more, the best first.

        Raises:
            UsageError: none keeps the goal, however little is asked.
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
            # Those that were left out come into question where all that looked better do not stand.
            found, left = self._ranked(left, wanted)
            if standing := self._standing(sorted(found, key=order)):
                self._tell(len(left))
                return sorted(standing, key=order)
        raise UsageError(self._never())

    def _ranked(
        self, options: Sequence[tuple[Settings, ServiceTime]], wanted: float
    ) -> tuple[list[Candidate], list[tuple[Settings, ServiceTime]]]:
        """What short simulations say of settings, the one with the highest capacity first, and the settings left out.

        Those are left out that at their best would need more machines than another one does.
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

    def _standing(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """The best that keep the goal in long simulations too, seldom what a short one had promised."""
        standing: list[Candidate] = []
        for place, one in enumerate(ranked):
            if standing and place >= FINALISTS:
                break
            refined = self._refined(one) if one.rate else one
            if refined.rate:
                standing.append(refined)
        return standing

    def simulate(self, candidate: Candidate, rate: float) -> Simulated:
        """One machine with these settings at a rate."""
        return self._run(candidate.settings, candidate.service, rate, self.fine)

    def highest_rate(self, settings: Settings, service: ServiceTime, count: int) -> float:
        """The highest rate at which a machine keeps the goal, by halving; 0 when a lonely request misses it already."""
        alone = float(service.mean(1.0)) + service.overhead.of_batch(1) + service.overhead.frontend
        if alone + (settings.max_batch_delay if settings.batch_size > 1 else 0) > self.goal.p99:
            return 0.0
        low, high = 0.0, capacity(settings, service)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if self.goal.kept_by(self._run(settings, service, middle, count)):
                low = middle
            else:
                high = middle
        return low

    def _highest(self, settings: Settings, service: ServiceTime, count: int) -> float:
        """As :meth:`highest_rate`, sought once: what a machine can do is the same whatever is planned for."""
        key = settings, count
        if key not in self._sought:
            self._sought[key] = self.highest_rate(settings, service, count)
        return self._sought[key]

    def _run(self, settings: Settings, service: ServiceTime, rate: float, count: int) -> Simulated:
        return simulate(settings, self._arrivals(rate, count), service, seed=self.stream.seed)

    def _refined(self, candidate: Candidate) -> Candidate:
        highest = self._highest(candidate.settings, candidate.service, self.fine)
        return Candidate(settings=candidate.settings, service=candidate.service, rate=highest)

    @functools.cached_property
    def _alone(self) -> float:
        """P99 of requests of which none meets another, ms; no settings make it less."""
        lonely = Clients(1, self.fine)
        services = [one.with_workers(1) for one in self.services]
        return min(simulate(Settings(), lonely, one, seed=self.stream.seed).latency(0.99) for one in services)

    def _never(self) -> str:
        return (
            f"no settings keep P99 within {self.goal.p99:g} ms: alone a request takes {self._alone:.1f} ms at P99;"
            " give a higher --p99, or a faster model"
        )


def capacity(settings: Settings, service: ServiceTime) -> float:
    """Requests a second that full batches one after the other would make: more is impossible."""
    items = settings.batch_size * float(np.mean(service.items))
    cycle = float(service.mean(items)) * float(np.mean(service.spread)) + service.overhead.of_batch(settings.batch_size)
    return settings.workers * settings.batch_size * SECOND / cycle


def machines_for(rate: float, each: float) -> int | float:
    """How many machines that do ``each`` are needed; infinitely many of those that do nothing."""
    return max(1, math.ceil(rate / each - 1e-9)) if each else math.inf


def service_for(services: Sequence[ServiceTime], workers: int) -> ServiceTime:
    """The service time with so many workers: the one that was measured with the nearest number of them, adapted."""
    nearest = min(services, key=lambda one: abs((one.machine.workers or workers) - workers))
    return nearest.with_workers(workers)
