"""One run: load a model, and compute the observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tsbatch.bench.request_bodies import Body
from tsbatch.bench.request_log import Progress
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.run import Plan, bench
from tsbatch.bench.summary import remarks
from tsbatch.bench.target import Target, find_target
from tsbatch.diagnosis.data_sources import known_of_result
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.server_facts import known_of
from tsbatch.errors import ServerError, UsageError
from tsbatch.serving.instance import Instance
from tsbatch.simulation.fitting import of_bench
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.system import gpus
from tsbatch.tuning.observation import Observation, observe
from tsbatch.tuning.ranking import Traffic
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Refused

DOUBTS: Final = ("busy", "late", "waited")
"""Remarks of a load test about problems of the load itself."""

NEEDED: Final = 100
"""Minimum requests of a run for its P99."""

TRIES: Final = 2
"""Attempts at a run: the first death of a worker is not blamed on the settings, the second is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The load of each run.

    Attributes:
        traffic: the clients or the rate.
        bodies: the request bodies.
        seconds: duration of the measurement, after ``warm_up`` seconds that do not count.
        timeout: seconds to wait for an answer.
    """

    traffic: Traffic
    bodies: Sequence[Body]
    seconds: float = 10.0
    warm_up: float = 3.0
    timeout: float = 30.0

    def plan(self, number: int) -> Plan:
        """Return the load test of run ``number``; each has other random arrivals."""
        return Plan(
            clients=[self.traffic.clients] if self.traffic.clients else [],
            rates=[self.traffic.rate] if self.traffic.rate else [],
            arrivals=self.traffic.kind,
            seconds=self.seconds,
            warm_up=self.warm_up,
            timeout=self.timeout,
            seed=self.traffic.seed + number,
        )


@dataclass(slots=True)
class Bench:
    """Run the workload on a server.

    Attributes:
        workload: the load of each run.
        tell: called with the progress of a run.
        runs: number of runs so far.
    """

    workload: Workload
    tell: Callable[[Progress], None] | None = None
    runs: int = field(default=0, init=False)

    def run(self, instance: Instance, model: str, settings: ModelSettings) -> Observation:
        """Measure a model that currently has these settings.

        Raises:
            UsageError: no request was sent in the measured time.
            Refused: the model does not answer with these settings.
            ServerError: the server has ended.
        """
        for tries_left in reversed(range(TRIES)):
            try:
                result, target = self._once(instance, model)
            except ServerError as error:
                if tries_left and instance.running():
                    continue
                raise refused(instance, error) from error
            if not tries_left or not _lost_worker(result.runs[0], target):
                break
        if not instance.running():
            raise ServerError(f"the server {instance.name!r} (process {instance.process.pid}) ended unexpectedly")
        with instance.management() as management:
            return self._observed(result, settings, known_of(management, model))

    def _once(self, instance: Instance, model: str) -> tuple[BenchResult, Target]:
        with instance.management() as management:
            management.wait_ready(model)
        target = find_target(model, instance=instance.name)
        self.runs += 1
        tell = self.tell
        on_progress = None if tell is None else lambda _, progress: tell(progress)
        return bench(target, self.workload.bodies, self.workload.plan(self.runs), on_progress), target

    def _observed(self, result: BenchResult, settings: ModelSettings, known: Known) -> Observation:
        run = result.runs[0]
        if not len(run.samples):
            sent = f"no request was sent in {self.workload.seconds:g} s ({self.workload.traffic})"
            raise UsageError(f"{sent}; use a longer --duration")
        found = known_of_result(result, [run])
        workers = [one for one in run.workers if one["name"] != "server"]
        memory = [one["memory_private"] or one["memory_rss"] for one in workers]
        held = [one["memory_gpus"] for one in workers]
        total = gpus.total() if any(held) else {}
        known = replace(known, worker_gpu_memory=_largest_share(held, total), gpus=len(total) or None)
        return observe(
            settings,
            run.samples,
            replace(known, worker_cores=found.worker_cores, worker_memory=max(memory, default=None)),
            seconds=run.seconds,
            answered=run.answered,
            memory=float(sum(memory)) if memory else None,
            gpu_memory=_largest_share([gpus.together(held)], total),
            service=_service(result),
            doubts=_doubts(run),
            timeout=self.workload.timeout,
        )


def _largest_share(held: Sequence[Mapping[str, int]], total: Mapping[str, int]) -> float | None:
    return max((memory / total[gpu] for one in held for gpu, memory in one.items() if gpu in total), default=None)


def _doubts(run: Run) -> dict[str, str]:
    found = {kind: text for kind, text in remarks(run).items() if kind in DOUBTS}
    if len(run.samples) < NEEDED:
        found["few"] = (
            f"a run had {len(run.samples)} requests, and a P99 needs {NEEDED}; use longer runs or a higher load"
        )
    return found


def _lost_worker(run: Run, target: Target) -> bool:
    return len(run.workers) < len(target.pids) or any(worker["gone"] for worker in run.workers)


def _service(result: BenchResult) -> ServiceTime | None:
    try:
        return of_bench(result, "a load test")
    except UsageError:  # the answers do not contain it
        return None


def refused(instance: Instance, error: ServerError) -> ServerError:
    """Convert a failure to :class:`Refused` unless the server has ended."""
    return Refused(str(error)) if instance.running() else error
