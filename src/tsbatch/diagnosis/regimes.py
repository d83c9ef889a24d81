"""Which of a few regimes a model is in, with the evidence in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tsbatch.diagnosis.evidence import Evidence
from tsbatch.diagnosis.latency_breakdown import PARTS


class Regime(str, Enum):
    """What a request's time is made of, and why."""

    IDLE = "idle"
    QUEUE = "queue-bound"
    ASSEMBLY = "assembly-bound"
    COMPUTE = "compute-bound"
    FULL = "queue full"
    SEQUENTIAL = "sequential client"
    OUTSIDE = "outside-bound"

    def __str__(self) -> str:
        return self.value


BOUND_BY: Final = {
    "queue": Regime.QUEUE,
    "assembly": Regime.ASSEMBLY,
    "handler": Regime.COMPUTE,
    "outside": Regime.OUTSIDE,
}

REFUSED: Final = 0.01
"""From this share of refused requests on the queue is full, whatever the others waited for."""

ALONE: Final = 0.95
"""From this share of requests on that met no other, nobody competes for anything."""

NEXT_AT_ONCE: Final = 0.5
"""A client that sends its next request when the last was answered has one on its way nearly all the time."""

IDLE_BUSY: Final = 0.3
"""Below this, workers mostly have nothing to do."""

DUE: Final = 0.05
"""A part below this share of the latency is not worth a change."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A regime with its reasons.

    Attributes:
        regime: which.
        dominant: the largest part of the latency.
        headline: what happens, in one sentence.
        evidence: sentences with the numbers.
    """

    regime: Regime
    dominant: str
    headline: str
    evidence: Sequence[str]


def find(evidence: Evidence) -> Finding:
    """The regime that this evidence shows."""
    dominant = max(PARTS, key=evidence.share)
    regime = _regime(evidence, dominant)
    return Finding(regime, dominant, _headline(regime, evidence), _sentences(evidence))


def _regime(evidence: Evidence, dominant: str) -> Regime:
    if evidence.refused >= REFUSED:
        return Regime.FULL
    if evidence.alone is not None and evidence.alone >= ALONE:
        return Regime.SEQUENTIAL if evidence.in_flight >= NEXT_AT_ONCE else Regime.IDLE
    if dominant == "handler" and evidence.busy < IDLE_BUSY and evidence.share("queue") < DUE:
        return Regime.IDLE
    return BOUND_BY[dominant]


def _headline(regime: Regime, evidence: Evidence) -> str:
    latency = f"{evidence.latency:.0f} ms"
    return {
        Regime.IDLE: f"The workers are idle {_percent(1 - evidence.busy)} of the time: a request's {latency} are its "
        f"own {evidence.handler:.0f} ms in the handler and {evidence.assembly:.0f} ms of waiting for company.",
        Regime.QUEUE: f"Requests wait for a free worker: {evidence.queue:.0f} of {latency} are queue wait.",
        Regime.ASSEMBLY: f"Requests wait for their batch to fill: {evidence.assembly:.0f} of {latency} are assembly "
        f"wait, and {_percent(1 - (evidence.full or 0))} of the batches leave without being full.",
        Regime.COMPUTE: f"The handler itself takes the time: {evidence.handler:.0f} of {latency}.",
        Regime.FULL: f"The queue is full: {_percent(evidence.refused)} of the requests are answered with 503 before "
        "any worker sees them.",
        Regime.SEQUENTIAL: "One client sends its next request only when the last was answered, so no batch can ever "
        f"hold more than one; {evidence.assembly:.0f} of {latency} are spent waiting for others.",
        Regime.OUTSIDE: f"Most of the time passes outside every wait and the handler: {evidence.outside:.0f} of "
        f"{latency}: on the network, in the client, or in TorchServe writing the answers.",
    }[regime]


def _sentences(evidence: Evidence) -> list[str]:
    rate = f"{evidence.rate:.1f} good answers/s, {_percent(evidence.failed)} failed"
    parts = (f"{name} {getattr(evidence, name):.1f} ms ({_percent(evidence.share(name))})" for name in PARTS)
    said = [
        f"{evidence.requests} requests in {evidence.seconds:.1f} s: {rate}",
        f"{', '.join(parts)} of {evidence.latency:.1f} ms",
        f"{_workers(evidence.workers)} in the handler {_percent(evidence.busy)} of the time"
        + (f", {evidence.at_once:.1f} at once while any is" if evidence.at_once and evidence.workers > 1 else ""),
        f"{evidence.in_flight:.1f} requests on their way at once"
        + (f", {_percent(evidence.alone)} met no other" if evidence.alone is not None else ""),
    ]
    if evidence.batch:
        said.append(_batches(evidence))
    if evidence.cost:
        said.append(f"a batch of n takes {evidence.cost.fixed:.1f} + {evidence.cost.each:.1f} n ms in the handler")
    return said


def _batches(evidence: Evidence) -> str:
    size = evidence.batch_size or f"more than {evidence.largest}"
    text = f"{evidence.batch:.1f} requests a batch (batchSize {size}), {_percent(evidence.full or 0)} of them full"
    if evidence.held is not None and (evidence.full or 0) < 1:
        text += f"; the others were held {evidence.held:.0f} ms"
    if evidence.delay is not None:
        text += f" (maxBatchDelay {evidence.delay:.0f})"
    return text


def _workers(count: int) -> str:
    return f"{count} worker" + ("s" if count > 1 else "")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else f"{100 * share:.1f} %"
