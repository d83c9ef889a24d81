"""A simulated server for the tuner: TorchServe's batching rules on a machine whose speed varies from run to run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import numpy as np

from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.diagnosis.model_facts import Known
from tsbatch.simulation.batching_rules import Overhead
from tsbatch.simulation.fitting import of_bench
from tsbatch.simulation.service_time import ServiceTime, log_normal
from tsbatch.simulation.simulator import simulate
from tsbatch.tuning.objective import Figures
from tsbatch.tuning.observation import Observation, observe
from tsbatch.tuning.ranking import Traffic, figures_of, simulator_settings
from tsbatch.tuning.search_space import ModelSettings, Space

QUEUE: Final = 100
WORKER_MEMORY: Final = 200_000_000

GRID: Final = Space(workers=(1, 2, 3, 4), batch_sizes=(1, 2, 4, 8, 16, 32), delays=(1, 5, 10, 20, 50, 100))
"""4 workers × 6 batch sizes × 6 delays."""

CURVES: Final = {
    "mostly fixed, 40 + 1·n": {1: 41.0, 2: 42.0},
    "mostly each, 2 + 12·n": {1: 14.0, 2: 26.0},
    "a knee at 8": {1: 20.0, 8: 27.0, 16: 90.0, 32: 220.0},
}
"""Service-time curves of three kinds of model: ms by batch size."""


@dataclass
class SimulatedServer:
    """A simulated system to tune; see :class:`tsbatch.tuning.tuner.System`.

    Attributes:
        curve: ms by batch size.
        traffic: the load.
        noise: the variation between runs: standard deviation of the logarithm of a run's speed factor.
        drift: the step of a random walk from run to run, in the unit of ``noise``.
        requests: requests in each run.
        seed: seed of all random numbers.
        runs: the number of runs so far.
    """

    curve: dict[int, float]
    traffic: Traffic
    noise: float = 0.02
    drift: float = 0.0
    requests: int = 4000
    seed: int = 0
    runs: int = field(default=0, init=False)
    _walk: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    @property
    def service(self) -> ServiceTime:
        """The true service time of a batch."""
        sizes = sorted(self.curve)
        return ServiceTime(
            sizes=sizes,
            times=[self.curve[size] for size in sizes],
            spread=log_normal(0.05),
            overhead=Overhead(frontend=1.0, batch=1.0, request=0.1),
        )

    def measure(self, settings: ModelSettings) -> Observation:
        """Simulate one run."""
        self.runs += 1
        self._walk += self.drift * float(self._random.normal())
        factor = math.exp(self._walk + self.noise * float(self._random.normal()))
        seed = self.seed + 1000 * self.runs
        simulated = simulate(
            simulator_settings(settings, QUEUE),
            self.traffic.arrivals(self.requests, seed),
            replace(self.service, times=[time * factor for time in self.service.times]),
            seed=seed,
        )
        samples = simulated.samples
        known = Known(
            workers=settings.workers,
            batch_size=settings.batch_size,
            max_batch_delay=settings.delay,
            queue_size=QUEUE,
            cores=8,
            worker_memory=WORKER_MEMORY,
            free_memory=64 * WORKER_MEMORY,
            worker_cores=0.01,
        )
        answered = int(samples.ok.sum())
        described = {"batchSize": settings.batch_size, "maxBatchDelay": settings.delay, "workers": settings.workers}
        run = Run(
            started="",
            step=None,
            seconds=simulated.seconds,
            answered=answered,
            answered_items=answered,
            samples=samples,
        )
        result = BenchResult(target={"settings": described}, plan={}, environment={"cores": 8}, runs=[run])
        return observe(
            settings,
            samples,
            known,
            seconds=simulated.seconds,
            answered=answered,
            memory=float(WORKER_MEMORY * settings.workers),
            service=of_bench(result, "simulated"),
        )

    def truth(self, settings: ModelSettings, requests: int = 20_000) -> Figures:
        """Compute the long-run figures of the settings, without noise."""
        arrivals = self.traffic.arrivals(requests, self.seed)
        found = figures_of(simulate(simulator_settings(settings, QUEUE), arrivals, self.service, seed=self.seed))
        return Figures(**{**asdict(found), "memory": float(WORKER_MEMORY * settings.workers)})
