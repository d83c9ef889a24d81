"""Autoscaling: KEDA queries Prometheus for the number of busy workers.

A BatchHandler emits the duration of each stage of each batch. The sum of their rates over all pods is the average
number of busy workers; divided by the target of one pod, that is the number of pods. The sum grows with the load before
requests have to wait, and means the same on any machine, unlike requests per second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tsbatch.errors import UsageError
from tsbatch.kserve.archive_facts import Facts
from tsbatch.worker.telemetry import STAGES

_ADDRESS = re.compile(r"https?://[^/\s]\S*")

WINDOW = "2m"
"""Window of the rates: Prometheus scrapes once a minute by default, and a rate needs two scrapes."""

MILLISECONDS = 1e3
MICROSECONDS = 1e6
QUEUE_COUNTER = "ts_queue_latency_microseconds"
"""TorchServe's counter for other handlers: how long requests waited for a worker and for their batch."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The limits and the target of autoscaling.

    Attributes:
        min_pods, max_pods: the limits.
        prometheus: the address of the Prometheus server; None if the number is fixed.
        busy: the target share of a pod's workers that are busy on average.
        namespace: the pods' namespace; None to query all namespaces.
    """

    min_pods: int
    max_pods: int
    prometheus: str | None = None
    busy: float = 0.7
    namespace: str | None = None

    def __post_init__(self) -> None:
        if self.max_pods > self.min_pods and not self.prometheus:
            raise UsageError(
                f"--replicas {self.min_pods}:{self.max_pods} needs --prometheus URL, the address at which KEDA reaches "
                "Prometheus; or give a single number"
            )
        if self.prometheus is not None and not _ADDRESS.fullmatch(self.prometheus):
            raise UsageError(
                f"--prometheus {self.prometheus!r}: expected an address like http://prometheus.monitoring:9090"
            )

    @classmethod
    def parse(
        cls, replicas: str, *, prometheus: str | None = None, busy: float = 0.7, namespace: str | None = None
    ) -> Scaling:
        """Parse ``N`` or ``MIN:MAX``.

        Raises:
            UsageError: it is neither, or a range without an address of Prometheus.
        """
        found = re.fullmatch(r"([0-9]+)(?::([0-9]+))?", replicas)
        low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 0 < low <= high:
            raise UsageError(f"--replicas is {replicas!r}; expected a number, or MIN:MAX like 1:4, from 1")
        return cls(low, high, prometheus, busy, namespace)

    @property
    def automatic(self) -> bool:
        """Whether the number of pods can change."""
        return self.max_pods > self.min_pods


def query(facts: Facts, scaling: Scaling) -> str:
    """Return the PromQL query: busy workers of all pods, or waiting requests if the handler emits no counters."""
    where = f', namespace="{scaling.namespace}"' if scaling.namespace else ""
    if not facts.emits_counters:
        return f'sum(rate({QUEUE_COUNTER}{{model_name="{facts.name}"{where}}}[{WINDOW}])) / {MICROSECONDS:g}'
    rates = "\n + ".join(
        f'sum(rate({stage.capitalize()}Time{{ModelName="{facts.name}"{where}}}[{WINDOW}]))' for stage in STAGES
    )
    return f"({rates}\n) / {MILLISECONDS:g}\n"


def target(facts: Facts, scaling: Scaling) -> float:
    """Return the target per pod: busy workers, or as many waiting requests as its workers take at once."""
    each = scaling.busy if facts.emits_counters else facts.batch_size
    return round(each * facts.workers, 3)
