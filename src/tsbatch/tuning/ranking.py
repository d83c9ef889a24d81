"""Predict the figures of settings by simulation, from the batches measured so far.

Batch sizes that were not measured are interpolated linearly. With a single measured size, larger batches are assumed to
cost as much and smaller ones in proportion: in doubt a trial is worth it, and shows what the others cost. Workers slow
down if they share too few cores (:meth:`tsbatch.simulation.service_time.Machine.slower_with`).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from tsbatch.bench.request_table import Column
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
"""Of one simulation: forty are beyond P99."""

BEGINNING: Final = 0.1
"""Share of a simulation that does not count, because it begins with an empty server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The load to tune for.

    Attributes:
        clients: number of clients of a closed loop; or
        rate: requests/s of an open loop.
        kind: arrival pattern of an open loop.
        seed: of random numbers.
    """

    clients: int | None = None
    rate: float | None = None
    kind: Kind = "poisson"
    seed: int = 0

    def arrivals(self, count: int, seed: int) -> Clients | Column:
        """Return the arrivals of ``count`` requests."""
        if self.clients is not None:
            return Clients(number=self.clients, requests=count, seed=seed)
        if self.rate is None:
            raise UsageError("a load needs clients or a rate")
        return take(Arrivals(self.kind, self.rate, seed), count)

    def __str__(self) -> str:
        return f"{self.clients} clients" if self.clients is not None else f"{self.rate:g} requests/s"


class Ranking:
    """Predict settings that were not measured.

    Args:
        runs: the measurements.
        traffic: the load.
        requests: requests of each simulation.
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
        """Predict the figures of settings, or the best possible ones; None if nothing is known of their batches."""
        service = self.service(settings)
        if service is None:
            return None
        service = optimistic(service) if at_best else service
        arrivals = self._traffic.arrivals(self._requests, self._traffic.seed)
        simulated = simulate(simulator_settings(settings, self._queue), arrivals, service, seed=self._traffic.seed)
        memory = self._memory * settings.workers or None
        return replace(figures_of(simulated), memory=memory, gpu_memory=self._gpu_memory(settings))

    def _gpu_memory(self, settings: ModelSettings) -> float | None:
        """Interpolate between the measured batch sizes, proportionally below them and constant above.

        TorchServe assigns workers to the GPUs in turn (frontend/server/.../wlm/WorkLoadManager.java).
        """
        if not self._held:
            return None
        sizes = sorted(self._held)
        one = np.interp(settings.batch_size, [0, *sizes], [0.0, *(self._held[size] for size in sizes)])
        return float(one) * math.ceil(settings.workers / self._gpus)

    def service(self, settings: ModelSettings) -> ServiceTime | None:
        """Predict the service time.

        From runs with the same or the nearest number of workers; sizes that these lack come from the others.
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
    """Combine several measurements of the same settings: the mean for each size."""
    found: dict[float, list[float]] = defaultdict(list)
    for service in services:
        for size, time in zip(service.sizes, service.times, strict=True):
            found[size].append(time)
    return _with_points(services[-1], {size: sum(times) / len(times) for size, times in found.items()})


def _with_points(service: ServiceTime, points: Mapping[float, float]) -> ServiceTime:
    sizes = sorted(points)
    # Noise must not make a larger batch cheaper.
    return replace(service, sizes=sizes, times=np.maximum.accumulate([points[size] for size in sizes]).tolist())


def extended(service: ServiceTime, other: ServiceTime) -> ServiceTime:
    """Add the sizes of another service time outside its own range, scaled by the difference at the edge."""
    points = dict(zip(service.sizes, service.times, strict=True))
    for size in other.sizes:
        if not service.sizes[0] <= size <= service.sizes[-1]:
            edge = service.sizes[0 if size < service.sizes[0] else -1]
            known = other.sizes[0] <= edge <= other.sizes[-1]
            points[size] = float(other.mean(size)) * (points[edge] / float(other.mean(edge)) if known else 1.0)
    return _with_points(service, points)


def typical_overhead(found: Sequence[Overhead]) -> Overhead:
    """Return the median of TorchServe's own time over the runs, because some runs hardly show it."""
    return Overhead(
        frontend=median(one.frontend for one in found),
        batch=median(one.batch for one in found),
        request=median(one.request for one in found),
    )


def hopeful(service: ServiceTime) -> ServiceTime:
    """Assume the best possible cost of other sizes if only one was measured."""
    if len(service.sizes) > 1:
        return service
    (size,), (time,) = service.sizes, service.times
    smaller = {1.0: time / size} if size > 1 else {}
    return _with_points(service, {**smaller, size: time, 2 * size: time})


def optimistic(service: ServiceTime) -> ServiceTime:
    """Assume that batches twice as large cost the same, if the next measured size is even larger."""
    points = dict(zip(service.sizes, service.times, strict=True))
    gaps = [small for small, large in itertools.pairwise(service.sizes) if large > 2 * small]
    return _with_points(service, points | {2 * small: points[small] for small in gaps})


def simulator_settings(settings: ModelSettings, queue: int) -> Settings:
    """Convert settings to those of the simulator."""
    return Settings(
        workers=settings.workers, batch_size=settings.batch_size, max_batch_delay=settings.delay, queue_size=queue
    )


def figures_of(simulated: Simulated) -> Figures:
    """Return the figures of a simulation, without its beginning."""
    samples = simulated.samples
    begin = samples.sent.min() + BEGINNING * simulated.seconds
    later = samples.where(samples.sent >= begin)
    good = later.latency[later.ok]
    p50, p99 = np.quantile(good, [0.5, 0.99]).tolist() if len(good) else (1e6, 1e6)
    ends = (samples.sent + samples.latency / 1000)[samples.ok]
    until = float(samples.sent.max())  # after the last arrival the queue only empties
    inside = int(((ends >= begin) & (ends <= until)).sum())
    return Figures(
        throughput=float(inside / max(until - begin, 1e-9)),
        p50=p50,
        p99=p99,
        failed=1 - float(later.ok.mean()) if len(later) else 1.0,
        requests=len(later),
    )
