"""Classify a model under load into one of a few regimes, with the evidence in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tsbatch.diagnosis.evidence import Evidence
from tsbatch.diagnosis.latency_breakdown import PARTS


class Regime(str, Enum):
    """What dominates the latency of the requests."""

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
"""Share of refused requests from which on the queue is full, whatever the other requests waited for."""

ALONE: Final = 0.95
"""Share of requests without any other in flight from which on nothing competes."""

SEQUENTIAL_IN_FLIGHT: Final = 0.5
"""Requests in flight from which on a sequential client, which nearly always has one in flight, is assumed."""

IDLE_BUSY: Final = 0.3
"""Below this share of busy time the workers are mostly idle."""

DUE: Final = 0.05
"""A part with a smaller share of the latency is not worth a change."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A regime with its reasons.

    Attributes:
        regime: the regime.
        dominant: the largest part of the latency.
        headline: an explanation in one sentence.
        evidence: lines with the figures.
    """

    regime: Regime
    dominant: str
    headline: str
    evidence: Sequence[str]


def find_regime(evidence: Evidence) -> Finding:
    """Return the regime that this evidence shows."""
    dominant = max(PARTS, key=evidence.share)
    if evidence.refused >= REFUSED:
        regime = Regime.FULL
    elif evidence.alone is not None and evidence.alone >= ALONE:
        regime = Regime.SEQUENTIAL if evidence.in_flight >= SEQUENTIAL_IN_FLIGHT else Regime.IDLE
    elif dominant == "handler" and evidence.busy < IDLE_BUSY and evidence.share("queue") < DUE:
        regime = Regime.IDLE
    else:
        regime = BOUND_BY[dominant]
    return Finding(regime, dominant, _headline(regime, evidence), _figures(evidence))


def _headline(regime: Regime, evidence: Evidence) -> str:
    latency = f"{evidence.latency:.0f} ms"
    return {
        Regime.IDLE: f"The workers are idle {_percent(1 - evidence.busy)} of the time: the mean latency of {latency} "
        f"includes {evidence.handler:.0f} ms in the handler and {evidence.assembly:.0f} ms of waiting for other "
        "requests.",
        Regime.QUEUE: f"Requests wait for a free worker: {evidence.queue:.0f} of {latency} are queue wait.",
        Regime.ASSEMBLY: f"Requests wait for their batch to fill: {evidence.assembly:.0f} of {latency} are assembly "
        f"wait, and {_percent(1 - (evidence.full or 0))} of the batches leave without being full.",
        Regime.COMPUTE: f"The handler takes most of the time: {evidence.handler:.0f} of {latency}.",
        Regime.FULL: f"The queue is full: {_percent(evidence.refused)} of the requests are answered with 503 before "
        "they reach a worker.",
        Regime.SEQUENTIAL: "A single client sends its next request only after the previous answer, so a batch can "
        f"never hold more than one request; {evidence.assembly:.0f} of {latency} are spent waiting for others.",
        Regime.OUTSIDE: f"Most of the time is neither a wait nor in the handler: {evidence.outside:.0f} of "
        f"{latency} are spent on the network, in the client, or in TorchServe writing the answers.",
    }[regime]


def _figures(evidence: Evidence) -> list[str]:
    parts = (f"{name} {getattr(evidence, name):.1f} ms ({_percent(evidence.share(name))})" for name in PARTS)
    workers = f"{evidence.workers} worker{'s' * (evidence.workers > 1)}"
    rate = f"{evidence.rate:.1f} good answers/s, {_percent(evidence.failed)} failed"
    lines = [
        f"{evidence.requests} requests in {evidence.seconds:.1f} s: {rate}",
        f"{', '.join(parts)} of {evidence.latency:.1f} ms",
        f"{workers} in the handler {_percent(evidence.busy)} of the time"
        + (f", {evidence.at_once:.1f} at once while any is" if evidence.at_once and evidence.workers > 1 else ""),
        f"{evidence.in_flight:.1f} requests in flight on average"
        + (f", {_percent(evidence.alone)} of the requests met no other" if evidence.alone is not None else ""),
    ]
    if evidence.batch:
        size = evidence.batch_size or f"more than {evidence.largest}"
        full = _percent(evidence.full or 0)
        line = f"{evidence.batch:.1f} requests per batch (batchSize {size}), {full} of them full"
        if evidence.held is not None and (evidence.full or 0) < 1:
            line += f"; the others were held {evidence.held:.0f} ms"
        lines.append(line + (f" (maxBatchDelay {evidence.delay:.0f})" if evidence.delay is not None else ""))
    if evidence.cost:
        lines.append(f"a batch of n takes {evidence.cost.fixed:.1f} + {evidence.cost.each:.1f} n ms in the handler")
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else f"{100 * share:.1f} %"
