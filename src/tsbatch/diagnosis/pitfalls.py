"""Common pitfalls that the figures show in addition to the regime."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tsbatch.diagnosis.evidence import Evidence
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.regimes import DUE, Regime

OTHERS_COMPUTE: Final = 0.5
"""Share of a batch's handler time from which on a request mostly waits for the other requests' computation."""

NOTICEABLE_MS: Final = 5.0
"""Smaller times are ignored."""

BUSY: Final = 0.5


def find_pitfalls(regime: Regime, evidence: Evidence, known: Known) -> list[str]:
    """Return one or two sentences about each pitfall that these figures show."""
    return [*_batch_pitfalls(regime, evidence), *_server_pitfalls(regime, evidence, known)]


def _batch_pitfalls(regime: Regime, evidence: Evidence) -> Iterator[str]:
    other_failures = evidence.failed - evidence.refused
    if other_failures >= 0.01:
        yield f"{100 * other_failures:.0f} % of the requests failed for other reasons: fix those before tuning."
    size = evidence.batch_size or (evidence.largest + 1 if evidence.largest else 0)
    if size > max(1, evidence.in_flight) and evidence.share("assembly") >= DUE:
        yield (
            f"A batch of {size} can never fill with {evidence.in_flight:.1f} requests in flight: every batch waits out "
            "the whole delay."
        )
    if regime is Regime.ASSEMBLY and evidence.workers > 1:
        yield (
            "Only one worker of a model fills a batch at a time: the others are idle while it waits out the delay, and "
            "more workers would not shorten it."
        )
    size = evidence.batch_size or 0
    if size > 1 and (evidence.full or 0) >= 0.5 and 0.75 * size <= evidence.in_flight <= 1.25 * size:
        idle = f", and {evidence.workers - 1} of {evidence.workers} workers idle" if evidence.workers > 1 else ""
        yield (
            f"batchSize {size} is about the number of requests in flight ({evidence.in_flight:.1f}): all clients are "
            f"answered and send their next request at the same moment, so one batch holds them all{idle}."
        )
    if evidence.cost is not None and evidence.batch and evidence.batch >= 2:
        whole, others = evidence.cost.of(evidence.batch), evidence.cost.each * (evidence.batch - 1)
        if others >= max(NOTICEABLE_MS, OTHERS_COMPUTE * whole):
            yield (
                f"In a batch of {evidence.batch:.0f}, {others:.0f} of {whole:.0f} ms are the computation of the other "
                "requests: each request waits for all of it. Smaller batches lower P50 but do not raise the "
                "throughput."
            )


def _server_pitfalls(regime: Regime, evidence: Evidence, known: Known) -> Iterator[str]:
    waiting = regime in (Regime.QUEUE, Regime.FULL)
    if waiting and evidence.batch_size == 1:
        yield (
            "batchSize 1 is not automatically the fastest: if a batch has a fixed cost, queued requests could share "
            "it. Measure batchSize 2 and 4 after this change, not together with it."
        )
    if regime is Regime.FULL:
        length = f" ({known.queue_size} now)" if known.queue_size else ""
        yield (
            f"A longer jobQueueSize{length} only turns 503s into waiting: at {evidence.rate:.0f} answers/s, each "
            f"additional slot adds {1000 / max(evidence.rate, 0.1):.0f} ms to the wait of the last request."
        )
    if known.threads is not None and known.cores is not None and known.threads * evidence.workers > known.cores:
        yield f"{evidence.workers} workers × {known.threads} threads are more than {known.cores} cores."
    if evidence.outside >= NOTICEABLE_MS and evidence.share("outside") >= 2 * DUE:
        yield (
            f"{evidence.outside:.0f} ms per request are in no metric: the transfer to the worker and back, and the "
            "answer, which TorchServe writes as indented JSON after the handler time unless the handler returns bytes."
        )
    if waiting and evidence.busy < BUSY:
        yield (
            f"The workers are busy only {100 * evidence.busy:.0f} % of the time and requests queue nevertheless: they "
            "arrive in bursts. Spreading them over time would help as much as more workers."
        )
