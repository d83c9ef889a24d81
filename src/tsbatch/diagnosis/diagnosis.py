"""A complete diagnosis: latency breakdown, regime, pitfalls and advice, from any source of measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tsbatch.bench.request_table import Samples
from tsbatch.diagnosis.advice import Advice, advise
from tsbatch.diagnosis.evidence import Evidence, evidence_of
from tsbatch.diagnosis.latency_breakdown import Split, split
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.pitfalls import find_pitfalls
from tsbatch.diagnosis.regimes import Finding, find_regime
from tsbatch.errors import UsageError

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The diagnosis of one model under one load.

    Attributes:
        source: where the measurements come from.
        known: facts known in addition to the requests.
        split: the latency breakdown.
        evidence: the figures.
        finding: the regime and its reasons.
        pitfalls: what else the figures show.
        advice: the next single change.
        remarks: limitations of these figures.
        samples: the requests; None if only sums are known.
        share: share of all requests that the samples are.
    """

    source: str
    known: Known
    split: Split
    evidence: Evidence
    finding: Finding
    pitfalls: Sequence[str]
    advice: Advice
    remarks: Sequence[str] = ()
    samples: Samples | None = None
    share: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Return one JSON object, schema included."""
        return {
            "schema": SCHEMA,
            "kind": "diagnosis",
            "source": self.source,
            "model": self.known.model,
            "version": self.known.version,
            "regime": self.finding.regime.value,
            "dominant": self.finding.dominant,
            "headline": self.finding.headline,
            "evidence": {**asdict(self.evidence), "said": list(self.finding.evidence)},
            "split": asdict(self.split),
            "traps": list(self.pitfalls),
            "advice": self.advice.to_json(self.known.model, self.known.engine),
            "known": asdict(self.known),
            "remarks": list(self.remarks),
        }


def diagnose(
    samples: Samples,
    known: Known,
    *,
    source: str = "",
    seconds: float | None = None,
    share: float = 1.0,
    remarks: Sequence[str] = (),
) -> Diagnosis:
    """Diagnose one model from its requests.

    Args:
        samples: its requests.
        known: facts known in addition to them.
        source: where they come from, for messages.
        seconds: duration, if the requests are only a sample.
        share: share of all requests that the samples are.
        remarks: limitations of the samples.

    Raises:
        UsageError: no request was answered with a known latency breakdown.
    """
    answered = samples.ok & (samples.handler == samples.handler)
    if not answered.any():
        raise UsageError(
            f"{source or 'the samples'}: none of {len(samples)} requests has a good answer with known queue wait, "
            "assembly wait and handler time; send X-Request-Start to a tsbatch handler, or diagnose the log folder"
        )
    evidence = evidence_of(samples, known, seconds=seconds, share=share)
    found = conclude(evidence, known, split(samples, share=share), source=source, remarks=remarks)
    return replace(found, samples=samples, share=share)


def conclude(
    evidence: Evidence, known: Known, parts: Split, *, source: str = "", remarks: Sequence[str] = ()
) -> Diagnosis:
    """Derive the diagnosis from this evidence."""
    finding = find_regime(evidence)
    return Diagnosis(
        source=source,
        known=known,
        split=parts,
        evidence=evidence,
        finding=finding,
        pitfalls=find_pitfalls(finding.regime, evidence, known),
        advice=advise(finding.regime, evidence, known),
        remarks=remarks,
    )
