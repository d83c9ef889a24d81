"""One measurement of one setting, small enough for a line in a file."""

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
"""Values that are kept of each of the service time's distributions: as many as tell its P99."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one run of one setting showed.

    Attributes:
        settings: the setting.
        figures: what counts.
        known: what was known of the model and the machine.
        evidence: where the time went; None when the answers did not tell.
        service: how long batches took; None when the answers did not tell.
        doubts: what makes the figures worth less than they look, by kind, as a load test's remarks.
        session: in which go of a tuning that was interrupted it was made; the machine may be another one in the next.
    """

    settings: ModelSettings
    figures: Figures
    known: Known
    evidence: Evidence | None = None
    service: ServiceTime | None = None
    doubts: Mapping[str, str] = field(default_factory=dict)
    session: int = 0

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "knobs": self.settings.to_json(),
            "figures": self.figures.to_json(),
            "known": asdict(self.known),
            "evidence": None if self.evidence is None else asdict(self.evidence),
            "service": None if self.service is None else self.service.to_json(),
            "doubts": dict(self.doubts),
            "session": self.session,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Observation:
        """The opposite of :meth:`to_json`.

        Raises:
            KeyError, TypeError, UsageError: it is no observation.
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
    """What a run's requests show.

    Args:
        settings: the setting.
        samples: the requests.
        known: what is known beside them.
        seconds: how long was measured.
        answered: good answers in that time.
        memory: bytes of the workers.
        gpu_memory: share that they hold together of a GPU's memory, where it is largest.
        service: how long batches took.
        doubts: what makes the figures worth less than they look.
        timeout: seconds that requests were waited for; what did not answer counts as long as that.
    """
    counted = samples.latency[samples.ok | ((samples.status == 0) & (samples.latency >= timeout * 999))]
    p50, p99 = np.quantile(counted, [0.5, 0.99]).tolist() if len(counted) else (timeout * 1000, timeout * 1000)
    told = bool((samples.ok & ~np.isnan(samples.handler)).any())
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
        evidence=evidence_of(samples, known, seconds=seconds) if told else None,
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
    """As many of them as tell how they are spread."""
    if len(values) <= MAX_KEPT:
        return list(values)
    found: list[float] = np.quantile(values, (np.arange(MAX_KEPT) + 0.5) / MAX_KEPT, method="nearest").tolist()
    return found


def _evidence(value: Mapping[str, Any]) -> Evidence:
    cost = value["cost"]
    return Evidence(**{**value, "cost": None if cost is None else Cost(**cost)})
