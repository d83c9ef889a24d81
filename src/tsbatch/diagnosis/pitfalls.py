"""What the numbers say beside the regime: the traps that people fall into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tsbatch.diagnosis.evidence import Evidence
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.regimes import DUE, Regime

OTHERS_COMPUTE: Final = 0.5
"""From this share of a batch's handler time on, a request mostly waits for its neighbours' compute."""

NOTICED_MS: Final = 5.0
"""Less than this nobody notices."""

BUSY: Final = 0.5

Trap = Callable[[Regime, Evidence, Known], "str | None"]


def traps(regime: Regime, evidence: Evidence, known: Known) -> list[str]:
    """One sentence for each trap that these numbers show."""
    return list(_found(regime, evidence, known))


def _found(regime: Regime, evidence: Evidence, known: Known) -> Iterator[str]:
    for trap in TRAPS:
        said = trap(regime, evidence, known)
        if said is not None:
            yield said


def never_fills(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """A delay paid in full, since there are fewer requests than a batch holds."""
    del regime, known
    size = evidence.batch_size or (evidence.largest + 1 if evidence.largest else None)
    if size is None or size < 2 or evidence.share("assembly") < DUE or evidence.in_flight >= size:
        return None
    return (
        f"A batch of {size} can never fill with {evidence.in_flight:.1f} requests on their way at once: the delay is "
        "paid in full each time."
    )


def one_fills_at_a_time(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """Workers that stand idle while another one waits for its batch."""
    del known
    if regime is not Regime.ASSEMBLY or evidence.workers < 2:
        return None
    return (
        "Only one worker of a model fills a batch at a time: the others stand idle while it waits out the delay, and "
        "more workers would not shorten it."
    )


def waits_for_neighbours(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """Batches so large that every request waits for the others' compute."""
    del regime, known
    if evidence.cost is None or not evidence.batch or evidence.batch < 2:
        return None
    whole = evidence.cost.of(evidence.batch)
    others = evidence.cost.each * (evidence.batch - 1)
    if others < NOTICED_MS or others / whole < OTHERS_COMPUTE:
        return None
    return (
        f"In a batch of {evidence.batch:.0f}, {others:.0f} of {whole:.0f} ms are the other requests' compute: each "
        "waits for all. Smaller batches give a lower P50, and no more requests a second."
    )


def lockstep(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """A batch size so near the number of clients that all move together."""
    del regime, known
    size = evidence.batch_size
    if size is None or size < 2 or (evidence.full or 0) < 0.5 or not 0.75 * size <= evidence.in_flight <= 1.25 * size:
        return None
    return (
        f"batchSize {size} is about the number of requests on their way ({evidence.in_flight:.1f}): everybody is "
        "answered and asks again at the same moment, so one batch holds them all"
        + (f" and {evidence.workers - 1} of {evidence.workers} workers idle." if evidence.workers > 1 else ".")
    )


def one_is_not_fastest(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """Batch size 1 while requests queue."""
    del known
    if regime not in (Regime.QUEUE, Regime.FULL) or evidence.batch_size != 1:
        return None
    return (
        "batchSize 1 is not automatically the fastest: where a batch has a fixed cost, requests that queue anyway "
        "could share it. Measure 2 and 4 after this change, not with it."
    )


def longer_queue(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """A full queue, which a longer one would only hide."""
    if regime is not Regime.FULL:
        return None
    length = f" ({known.queue_size} now)" if known.queue_size else ""
    return (
        f"A longer jobQueueSize{length} turns 503s into waiting: at {evidence.rate:.0f} answers/s each further place "
        f"adds {1000 / max(evidence.rate, 0.1):.0f} ms to the last one's wait."
    )


def too_many_threads(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """More threads than cores."""
    del regime
    if known.threads is None or known.cores is None or known.threads * evidence.workers <= known.cores:
        return None
    return f"{evidence.workers} workers × {known.threads} threads are more than {known.cores} cores."


def serialised(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """Answers that are written outside every metric."""
    del regime, known
    if evidence.outside < NOTICED_MS or evidence.share("outside") < 2 * DUE:
        return None
    return (
        f"{evidence.outside:.0f} ms a request are in no metric: the way to the worker and back, and the answer, which "
        "TorchServe writes as indented JSON after the handler's time has ended unless the handler returns bytes."
    )


def bursts(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """Requests that queue though the workers have little to do."""
    del known
    if regime not in (Regime.QUEUE, Regime.FULL) or evidence.busy >= BUSY:
        return None
    return (
        f"The workers are busy only {100 * evidence.busy:.0f} % of the time and requests queue all the same: they come "
        "in bursts. Clients that spread them would help as much as more workers."
    )


def other_failures(regime: Regime, evidence: Evidence, known: Known) -> str | None:
    """Requests that failed for another reason than a full queue."""
    del regime, known
    others = evidence.failed - evidence.refused
    if others < 0.01:
        return None
    return f"{100 * others:.0f} % of the requests failed otherwise: find out why before you tune anything."


TRAPS: Final[tuple[Trap, ...]] = (
    other_failures,
    never_fills,
    one_fills_at_a_time,
    lockstep,
    waits_for_neighbours,
    one_is_not_fastest,
    longer_queue,
    too_many_threads,
    serialised,
    bursts,
)
