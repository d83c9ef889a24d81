"""What the simulator expects of a setting, from how long batches took so far.

Batches of a size that was not seen lie on the line through those that were. With a single size seen, larger ones are
taken to cost as much as that one and smaller ones their share of it: in doubt a try is worth it, and it teaches what
the others cost. Workers that share
too few cores are slower by what is missing (:meth:`tsbatch.simulation.service_time.Machine.slower_with`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from tsbatch.bench.send_times import Arrivals, Kind
from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import DEFAULT_QUEUE_SIZE, Overhead, Settings
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.simulator import Simulated, simulate
from tsbatch.simulation.workload import Clients, take
from tsbatch.tuning.objective import Figures
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.search_space import ModelSettings

REQUESTS: Final = 4000
"""Of one simulation: P99 has forty beyond it."""

BEGINNING: Final = 0.1
"""Share of a simulation that does not count, since it begins with an empty server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The load that is tuned for.

    Attributes:
        clients: of a closed loop; or
        rate: requests a second of an open one.
        kind: how those follow each other.
        seed: of random numbers.
    """

    clients: int | None = None
    rate: float | None = None
    kind: Kind = "poisson"
    seed: int = 0

    def arrivals(self, count: int, seed: int) -> Clients | np.ndarray[tuple[int], np.dtype[np.float64]]:
        """So many requests of it."""
        if self.clients is not None:
            return Clients(number=self.clients, requests=count, seed=seed)
        if self.rate is None:
            raise UsageError("a load has clients or a rate")
        return take(Arrivals(self.kind, self.rate, seed), count)

    def __str__(self) -> str:
        return f"{self.clients} clients" if self.clients is not None else f"{self.rate:g} requests/s"


class Ranking:
    """Predicts settings that were not measured.

    Args:
        runs: what was measured.
        traffic: the load.
        requests: of each simulation.
    """

    def __init__(self, runs: Sequence[Observation], traffic: Traffic, requests: int = REQUESTS) -> None:
        self._runs = [run for run in runs if run.service is not None]
        self._traffic, self._requests = traffic, requests
        self._memory = max((run.known.worker_memory or 0 for run in runs), default=0)
        self._gpus = max((run.known.gpus or 1 for run in runs), default=1)
        self._held: dict[int, float] = defaultdict(float)
        for run in runs:
            if run.known.worker_gpu_memory is not None:
                size = run.settings.batch_size
                self._held[size] = max(self._held[size], run.known.worker_gpu_memory)
        self._queue = next((run.known.queue_size for run in reversed(runs) if run.known.queue_size), DEFAULT_QUEUE_SIZE)

    def predict(self, settings: ModelSettings, *, at_best: bool = False) -> Figures | None:
        """What a setting is expected to show, or could show at best; None when nothing is known of its batches."""
        service = self.service(settings)
        if service is None:
            return None
        service = optimistic(service) if at_best else service
        simulated = simulate(
            simulator_settings(settings, self._queue), self._arrivals(), service, seed=self._traffic.seed
        )
        memory = self._memory * settings.workers or None
        return replace(figures_of(simulated), memory=memory, gpu_memory=self._gpu_memory(settings))

    def _gpu_memory(self, settings: ModelSettings) -> float | None:
        """As of batches: between sizes that were seen on the line, beyond them no more, and below them their share.

        TorchServe deals workers out to the GPUs in turn (frontend/server/.../wlm/WorkLoadManager.java).
        """
        if not self._held:
            return None
        sizes = sorted(self._held)
        one = np.interp(settings.batch_size, [0, *sizes], [0.0, *(self._held[size] for size in sizes)])
        return float(one) * math.ceil(settings.workers / self._gpus)

    def _arrivals(self) -> Clients | np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self._traffic.arrivals(self._requests, self._traffic.seed)

    def service(self, settings: ModelSettings) -> ServiceTime | None:
        """How long its batches are expected to take.

        From those with as many workers or the nearest number of them; sizes that these did not have from the others.
        """
        alike: dict[int, list[ServiceTime]] = defaultdict(list)
        for run in self._runs:
            if run.settings.threads == settings.threads and run.service is not None:
                alike[run.settings.workers].append(run.service)
        if not alike:
            return None
        nearest, *others = sorted(alike, key=lambda workers: abs(workers - settings.workers))
        found = pool(alike[nearest]).with_workers(settings.workers)
        for workers in others:
            found = extended(found, pool(alike[workers]).with_workers(settings.workers))
        overhead = typical_overhead([run.service.overhead for run in self._runs if run.service is not None])
        return replace(hopeful(found), overhead=overhead)


def pool(services: Sequence[ServiceTime]) -> ServiceTime:
    """One service time out of several measurements of the same thing: for each size the mean."""
    last = services[-1]
    found: dict[float, list[float]] = defaultdict(list)
    for service in services:
        for size, time in zip(service.sizes, service.times, strict=True):
            found[size].append(time)
    sizes = sorted(found)
    means = [sum(found[size]) / len(found[size]) for size in sizes]
    # Noise must not make a larger batch cheaper.
    return replace(last, sizes=sizes, times=np.maximum.accumulate(means).tolist())


def extended(service: ServiceTime, other: ServiceTime) -> ServiceTime:
    """With the sizes beyond its own that another one knows, as much slower or faster as the two differ at the edge."""
    points = dict(zip(service.sizes, service.times, strict=True))
    for size in other.sizes:
        if not service.sizes[0] <= size <= service.sizes[-1]:
            edge = service.sizes[0 if size < service.sizes[0] else -1]
            known = other.sizes[0] <= edge <= other.sizes[-1]
            points[size] = float(other.mean(size)) * (points[edge] / float(other.mean(edge)) if known else 1.0)
    sizes = sorted(points)
    return replace(service, sizes=sizes, times=np.maximum.accumulate([points[size] for size in sizes]).tolist())


def typical_overhead(found: Sequence[Overhead]) -> Overhead:
    """The median of what each run shows of TorchServe's own cost, which some can hardly show."""
    return Overhead(
        frontend=median(one.frontend for one in found),
        batch=median(one.batch for one in found),
        request=median(one.request for one in found),
    )


def hopeful(service: ServiceTime) -> ServiceTime:
    """With what the other sizes would cost at best, where only one was seen."""
    if len(service.sizes) > 1:
        return service
    (size,), (time,) = service.sizes, service.times
    smaller = {1.0: time / size} if size > 1 else {}
    points = {**smaller, size: time, 2 * size: time}
    return replace(service, sizes=list(points), times=list(points.values()))


def optimistic(service: ServiceTime) -> ServiceTime:
    """With batches twice as large as measured ones costing no more, where the next size that was seen is larger yet."""
    points = dict(zip(service.sizes, service.times, strict=True))
    gaps = [small for small, large in itertools.pairwise(service.sizes) if large > 2 * small]
    points |= {2 * small: points[small] for small in gaps}
    sizes = sorted(points)
    return replace(service, sizes=sizes, times=[points[size] for size in sizes])


def simulator_settings(settings: ModelSettings, queue: int) -> Settings:
    """A setting in the simulator's words."""
    return Settings(
        workers=settings.workers, batch_size=settings.batch_size, max_batch_delay=settings.delay, queue_size=queue
    )


def figures_of(simulated: Simulated) -> Figures:
    """The figures of a simulation, without its beginning."""
    samples = simulated.samples
    begin = samples.sent.min() + BEGINNING * simulated.seconds
    later = samples.where(samples.sent >= begin)
    good = later.latency[later.ok]
    p50, p99 = np.quantile(good, [0.5, 0.99]).tolist() if len(good) else (1e6, 1e6)
    ends = (samples.sent + samples.latency / 1000)[samples.ok]
    until = float(samples.sent.max())  # after the last arrival it only runs empty
    inside = int(((ends >= begin) & (ends <= until)).sum())
    return Figures(
        throughput=float(inside / max(until - begin, 1e-9)),
        p50=p50,
        p99=p99,
        failed=1 - float(later.ok.mean()) if len(later) else 1.0,
        requests=len(later),
    )
