"""One measurement, small enough for a line in the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from tsbatch.bench.request_table import Samples
from tsbatch.diagnosis.evidence import Cost, Evidence, evidence_of
from tsbatch.diagnosis.model_facts import Known
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.tuning.objective import Figures
from tsbatch.tuning.search_space import ModelSettings

MAX_KEPT: Final = 200
"""Maximum number of values for each distribution of the service time, enough for its P99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The result of one run.

    Attributes:
        settings: the measured settings.
        figures: the figures.
        known: facts about the model and the machine.
        evidence: where the time went; None if the answers do not contain it.
        service: the service time; None if the answers do not contain it.
        doubts: caveats about the figures by kind, as in a load test's remarks.
        session: number of the tuning process, from 1; after an interruption the machine may be another one.
    """

    settings: ModelSettings
    figures: Figures
    known: Known
    evidence: Evidence | None = None
    service: ServiceTime | None = None
    doubts: Mapping[str, str] = field(default_factory=dict)
    session: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "knobs": asdict(self.settings),
            "figures": asdict(self.figures),
            "known": asdict(self.known),
            "evidence": None if self.evidence is None else asdict(self.evidence),
            "service": None if self.service is None else self.service.to_json(),
            "doubts": dict(self.doubts),
            "session": self.session,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Observation:
        """Read the value of :meth:`to_json`.

        Raises:
            KeyError, TypeError, UsageError: it is not an observation.
        """
        evidence, service = value["evidence"], value["service"]
        return cls(
            settings=ModelSettings(**value["knobs"]),
            figures=Figures(**value["figures"]),
            known=Known(**value["known"]),
            evidence=None if evidence is None else _evidence(evidence),
            service=None if service is None else ServiceTime.from_json(service, "the journal"),
            doubts=value["doubts"],
            session=value["session"],
        )


def observe(
    settings: ModelSettings,
    samples: Samples,
    known: Known,
    *,
    seconds: float,
    answered: int,
    memory: float | None = None,
    gpu_memory: float | None = None,
    service: ServiceTime | None = None,
    doubts: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Observation:
    """Compute the observation of a run from its requests.

    Args:
        settings: the measured settings.
        samples: the requests.
        known: facts about the model and the machine.
        seconds: duration of the measurement.
        answered: successful requests in that time.
        memory: private memory of the workers in bytes.
        gpu_memory: share of the fullest GPU's memory that they hold together.
        service: the service time.
        doubts: caveats about the figures.
        timeout: timeout of a request in seconds; requests without an answer count with it.
    """
    counted = samples.latency[samples.ok | ((samples.status == 0) & (samples.latency >= timeout * 999))]
    p50, p99 = np.quantile(counted, [0.5, 0.99]).tolist() if len(counted) else (timeout * 1000, timeout * 1000)
    has_times = bool((samples.ok & ~np.isnan(samples.handler)).any())
    return Observation(
        settings=settings,
        figures=Figures(
            throughput=answered / seconds,
            p50=p50,
            p99=p99,
            failed=1 - float(samples.ok.mean()) if len(samples) else 1.0,
            memory=memory,
            gpu_memory=gpu_memory,
            requests=len(samples),
        ),
        known=known,
        evidence=evidence_of(samples, known, seconds=seconds) if has_times else None,
        service=None if service is None else _short(service),
        doubts=doubts or {},
    )


def _short(service: ServiceTime) -> ServiceTime:
    spread = _thinned(service.spread)
    middle = sum(spread) / len(spread)
    return replace(
        service,
        spread=[factor / middle for factor in spread],
        items=_thinned(service.items),
        lengths=_thinned(service.lengths),
    )


def _thinned(values: Sequence[float]) -> list[float]:
    """Return at most :data:`MAX_KEPT` quantiles."""
    if len(values) <= MAX_KEPT:
        return list(values)
    found: list[float] = np.quantile(values, (np.arange(MAX_KEPT) + 0.5) / MAX_KEPT, method="nearest").tolist()
    return found


def _evidence(value: Mapping[str, Any]) -> Evidence:
    cost = value["cost"]
    return Evidence(**{**value, "cost": None if cost is None else Cost(**cost)})
