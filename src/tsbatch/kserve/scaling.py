"""Autoscaling: KEDA asks Prometheus how busy the pods are.

A handler of ours tells how long each stage of each batch took. Their rates, added up over all pods, are how many
workers are busy on average; divided by what one pod may have busy, that is the number of pods. The sum grows with the
load before anyone waits, and means the same on any machine, which requests a second would not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tsbatch.errors import UsageError
from tsbatch.kserve.archive_facts import Facts
from tsbatch.worker.telemetry import STAGES

_ADDRESS = re.compile(r"https?://[^/\s]\S*")

WINDOW = "2m"
"""Of the rates: Prometheus' own default is to look once a minute, and a rate needs two looks."""

MILLISECONDS = 1e3
MICROSECONDS = 1e6
WAITING = "ts_queue_latency_microseconds"
"""TorchServe's own counter, for handlers that emit none of ours: what requests waited for a worker and their batch."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """From how many pods to how many, by what.

    Attributes:
        least, most: pods.
        prometheus: the address of the Prometheus server; None where the number is fixed.
        busy: the share of a pod's workers that may be busy on average.
        namespace: where the pods run; None for a metric that is asked for in all of them.
    """

    least: int
    most: int
    prometheus: str | None = None
    busy: float = 0.7
    namespace: str | None = None

    def __post_init__(self) -> None:
        if self.most > self.least and not self.prometheus:
            raise UsageError(
                f"--replicas {self.least}:{self.most} needs --prometheus URL, the address at which KEDA can ask "
                "Prometheus; or give one number"
            )
        if self.prometheus is not None and not _ADDRESS.fullmatch(self.prometheus):
            raise UsageError(
                f"--prometheus {self.prometheus!r}: expected an address like http://prometheus.monitoring:9090"
            )

    @classmethod
    def parse(
        cls, replicas: str, *, prometheus: str | None = None, busy: float = 0.7, namespace: str | None = None
    ) -> Scaling:
        """From ``N`` or ``MIN:MAX``.

        Raises:
            UsageError: it is neither, or a range without an address of Prometheus.
        """
        least, colon, most = replicas.partition(":")
        words = (least, most if colon else least)
        numbers = [int(word) if word.isascii() and word.isdecimal() else 0 for word in words]
        if not 0 < numbers[0] <= numbers[1]:
            raise UsageError(f"--replicas is {replicas!r}; expected a number, or MIN:MAX like 1:4, from 1")
        return cls(numbers[0], numbers[1], prometheus, busy, namespace)

    @property
    def automatic(self) -> bool:
        """Whether the number of pods changes."""
        return self.most > self.least


def query(facts: Facts, scaling: Scaling) -> str:
    """PromQL: busy workers of all pods; where the handler does not tell, requests that wait, of all pods."""
    where = f', namespace="{scaling.namespace}"' if scaling.namespace else ""
    if not facts.counts:
        return f'sum(rate({WAITING}{{model_name="{facts.name}"{where}}}[{WINDOW}])) / {MICROSECONDS:g}'
    rates = "\n + ".join(
        f'sum(rate({stage.capitalize()}Time{{ModelName="{facts.name}"{where}}}[{WINDOW}]))' for stage in STAGES
    )
    return f"({rates}\n) / {MILLISECONDS:g}\n"


def target(facts: Facts, scaling: Scaling) -> float:
    """What one pod may have of it: so many busy workers, or as many waiting requests as its workers take at once."""
    each = scaling.busy if facts.counts else facts.batch_size
    return round(each * facts.workers, 3)
