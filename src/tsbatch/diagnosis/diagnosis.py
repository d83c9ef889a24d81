"""A whole diagnosis: the split, the regime, and what to do next. Everything that measures ends here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tsbatch.bench.request_table import Samples
from tsbatch.diagnosis.advice import Advice, advise
from tsbatch.diagnosis.evidence import Evidence, evidence_of
from tsbatch.diagnosis.latency_breakdown import Split, split
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.pitfalls import traps
from tsbatch.diagnosis.regimes import Finding, find
from tsbatch.errors import UsageError

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong with one model under one load, and what to do.

    Attributes:
        source: where the numbers come from.
        known: what was known beside them.
        split: where the time went.
        evidence: the figures.
        finding: the regime and its reasons.
        traps: what else the figures show.
        advice: the next single change.
        remarks: what limits these figures.
        samples: the requests behind it; None where only sums are known.
        share: how much of all requests they are.
    """

    source: str
    known: Known
    split: Split
    evidence: Evidence
    finding: Finding
    traps: Sequence[str]
    advice: Advice
    remarks: Sequence[str] = ()
    samples: Samples | None = None
    share: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """As one JSON object, its schema included."""
        return {
            "schema": SCHEMA,
            "kind": "diagnosis",
            "source": self.source,
            "model": self.known.model,
            "version": self.known.version,
            "regime": self.finding.regime.value,
            "dominant": self.finding.dominant,
            "headline": self.finding.headline,
            "evidence": {**self.evidence.to_json(), "said": list(self.finding.evidence)},
            "split": self.split.to_json(),
            "traps": list(self.traps),
            "advice": self.advice.to_json(self.known.model, self.known.engine),
            "known": self.known.to_json(),
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
        known: what is known beside them.
        source: where they come from, for the reader.
        seconds: how long it took, when the requests are only a sample.
        share: how much of all requests they are.
        remarks: what limits them.

    Raises:
        UsageError: no request was answered with its split known.
    """
    answered = samples.ok & (samples.handler == samples.handler)
    if not answered.any():
        raise UsageError(
            f"{source or 'the samples'}: of {len(samples)} requests none was answered well and told its queue wait, "
            "assembly wait and handler time; send X-Request-Start to a tsbatch handler, or diagnose the log folder"
        )
    evidence = evidence_of(samples, known, seconds=seconds, share=share)
    found = concluded(evidence, known, split(samples, share=share), source=source, remarks=remarks)
    return replace(found, samples=samples, share=share)


def concluded(
    evidence: Evidence, known: Known, parts: Split, *, source: str = "", remarks: Sequence[str] = ()
) -> Diagnosis:
    """The diagnosis that this evidence leads to."""
    finding = find(evidence)
    return Diagnosis(
        source=source,
        known=known,
        split=parts,
        evidence=evidence,
        finding=finding,
        traps=traps(finding.regime, evidence, known),
        advice=advise(finding.regime, evidence, known),
        remarks=remarks,
    )
