"""Advise the next single change, with its reason, what would prove it wrong, and what not to change meanwhile.

One change at a time, in the order that works: find the dominant wait; lower maxBatchDelay if batches leave by timeout
without being full; add workers if the queue dominates and memory and cores allow it; batchSize last. Each rule below
either advises or returns None; the first advice of a regime's rules is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from tsbatch.diagnosis.evidence import Evidence
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.regimes import DUE, Regime

Setting = Literal["maxBatchDelay", "workers", "batchSize", "threads"]

ON_RAY: Final[dict[Setting, str]] = {
    "maxBatchDelay": "--max-batch-delay",
    "workers": "--replicas",
    "batchSize": "--batch-size",
    "threads": "--cpus",
}
"""Options of ``tsbatch ray deploy``."""

WORTH: Final = 0.1
"""Share of the latency from which on a wait is reduced before anything else is added."""

SUSTAINABLE: Final = 0.8
"""Workers that would be busier than this without batching need it."""

MEMORY_MARGIN: Final = 0.9
"""Share of the free memory that new workers may use."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one setting from ``old`` (None if unknown) to ``new``."""

    setting: Setting
    old: int | None
    new: int

    def __str__(self) -> str:
        return f"{self.setting} {'' if self.old is None else f'{self.old} '}→ {self.new}"

    def yaml(self) -> str:
        """Return the lines of model-config.yaml for this change."""
        if self.setting == "workers":
            return f"minWorkers: {self.new}\nmaxWorkers: {self.new}"
        if self.setting == "threads":
            return f"tsbatch:\n  threads: {self.new}"
        return f"{self.setting}: {self.new}"

    def command(self, model: str, engine: str | None = None) -> str | None:
        """Return the command that applies it to a running server; None if the archive must change."""
        if engine == "ray":
            return f"tsbatch ray deploy ARCHIVE --name {model} {ON_RAY[self.setting]} {self.new}"
        if self.setting == "threads":
            return None
        if self.setting == "workers":
            return f"tsbatch scale {model} --workers {self.new}"
        option = "--max-batch-delay" if self.setting == "maxBatchDelay" else "--batch-size"
        return f"tsbatch reconfigure {model} {option} {self.new}"


@dataclass(frozen=True, slots=True)
class Advice:
    """The next step.

    Attributes:
        change: the single change; None if no setting would help.
        why: the reason, with figures.
        disproof: observations that would prove the advice wrong.
        leave: settings not to change meanwhile.
    """

    change: Change | None
    why: str
    disproof: str
    leave: Sequence[str] = ()

    def to_json(self, model: str, engine: str | None = None) -> dict[str, Any]:
        """Return one JSON object, including the command and the YAML lines."""
        commands = {"command": self.change.command(model, engine), "yaml": self.change.yaml()} if self.change else {}
        return {**asdict(self), **commands}


Rule = Callable[[Evidence, Known], Advice | None]


def advise(regime: Regime, evidence: Evidence, known: Known) -> Advice:
    """Return the next step in this regime."""
    return next(filter(None, (rule(evidence, known) for rule in RULES[regime])), NOTHING)


NOTHING: Final = Advice(
    None,
    "No wait is large enough to justify a change: the rest of the latency is the model itself.",
    "A higher load, or one with bursts, may look different: measure under a realistic load.",
    ("batchSize", "maxBatchDelay", "workers"),
)


def shorter_delay(evidence: Evidence, _known: Known) -> Advice | None:
    """Lower maxBatchDelay if batches leave by timeout and requests pay for it."""
    delay = evidence.delay if evidence.delay is not None else evidence.held
    if delay is None or delay <= 1.5 or (evidence.full or 0) >= 0.5 or evidence.share("assembly") < DUE:
        return None
    needed = evidence.cost is not None and evidence.rate * evidence.cost.of(1) / 1000 > SUSTAINABLE * evidence.workers
    new = max(1, round(delay / 2)) if needed else 1
    why = (
        f"{100 * (1 - (evidence.full or 0)):.0f} % of the batches leave because maxBatchDelay is over, not because "
        f"they are full, which costs each request {evidence.assembly:.0f} ms. "
    )
    why += (
        "Halve it for now: without any delay the workers could not keep up with batches of one."
        if needed
        else "With 1 ms a batch takes the queued requests and does not wait for more; requests that arrive while a "
        "worker computes still share the next batch."
    )
    disproof = (
        f"P50 and P99 should fall by nearly {evidence.assembly:.0f} ms. If the queue wait grows by as much instead, "
        "the batches were worth waiting for: revert the change."
    )
    return Advice(Change("maxBatchDelay", round(delay), new), why, disproof, ("batchSize", "workers"))


def shorter_delay_first(evidence: Evidence, known: Known) -> Advice | None:
    """Lower maxBatchDelay before anything else if it is a large part of the latency."""
    return shorter_delay(evidence, known) if evidence.share("assembly") >= WORTH else None


def spread_over_workers(evidence: Evidence, _known: Known) -> Advice | None:
    """Reduce batchSize if one worker takes all requests while the others are idle."""
    if evidence.workers < 2 or evidence.at_once is None or not evidence.batch or not evidence.largest:
        return None
    fair = math.ceil(evidence.in_flight / evidence.workers)
    idle = evidence.at_once < 1 + 0.5 * (evidence.workers - 1)
    if not idle or evidence.largest < 1.5 * fair or fair < 1:
        return None
    why = (
        f"{evidence.largest} requests fit into one batch and about {evidence.in_flight:.0f} are in flight at a time: "
        f"one worker takes them all and the others are idle ({evidence.at_once:.1f} of {evidence.workers} workers "
        f"compute at once). Batches of {fair} give each worker its share."
    )
    disproof = (
        f"The number of concurrent batches should rise towards {evidence.workers} and the handler time should fall. If "
        "the handler time does not change, a batch costs the same whatever its size: revert the change."
    )
    return Advice(
        Change("batchSize", evidence.batch_size or evidence.largest, fair), why, disproof, ("workers", "maxBatchDelay")
    )


def fewer_threads(evidence: Evidence, known: Known) -> Advice | None:
    """Divide the cores among the workers if they have more threads than there are cores."""
    if known.threads is None or known.cores is None or known.threads * evidence.workers <= known.cores:
        return None
    new = max(1, known.cores // evidence.workers)
    if new >= known.threads:
        return None
    why = (
        f"{evidence.workers} workers with {known.threads} threads each compete for {known.cores} cores; threads that "
        "wait for each other make every batch slower."
    )
    disproof = "The handler time should fall. If it does not, the threads were not the bottleneck: revert the change."
    return Advice(Change("threads", known.threads, new), why, disproof, ("workers", "batchSize"))


def more_workers(evidence: Evidence, known: Known) -> Advice | None:
    """Add workers if requests wait for a free one and the machine has capacity."""
    if evidence.share("queue") < WORTH and evidence.refused == 0:
        return None
    room, reason = room_for_workers(evidence, known)
    if room < 1:
        return None
    new = evidence.workers + min(room, evidence.workers)
    why = (
        f"{evidence.queue:.0f} of {evidence.latency:.0f} ms are spent waiting for a free worker, and "
        f"{'all are' if evidence.workers > 1 else 'the only one is'} busy {100 * evidence.busy:.0f} % of the time. "
        f"{reason}"
    )
    disproof = (
        f"The queue wait should fall from {evidence.queue:.0f} ms to {evidence.queue * evidence.workers / new:.0f} ms "
        "or less. If the handler time grows instead, the workers compete for the same cores: revert the change."
    )
    leave = ("batchSize", "maxBatchDelay", "jobQueueSize: a longer queue only makes the wait longer")
    return Advice(Change("workers", evidence.workers, new), why, disproof, leave)


def room_for_workers(evidence: Evidence, known: Known) -> tuple[int, str]:
    """Return how many more workers the machine has capacity for, and the reasoning."""
    room, reasons = evidence.workers, []
    if known.free_memory is not None and known.worker_memory:
        by_memory = int(MEMORY_MARGIN * known.free_memory / known.worker_memory)
        room = min(room, by_memory)
        reasons.append(
            f"one more takes {known.worker_memory / 2**20:.0f} MiB of {known.free_memory / 2**20:.0f} MiB free memory"
        )
    if known.cores is not None:
        used = known.worker_cores
        limit = known.cores if used is None else max(known.cores, int(known.cores / max(used, 0.01)))
        room = min(room, max(0, limit - evidence.workers))
        each = "up to one each" if used is None else f"{used:.2f} each while they compute"
        reasons.append(f"of {known.cores} cores the workers ({evidence.workers}) use {each}")
    if not reasons:
        reasons.append("check first whether memory and cores allow it, which this source does not show")
    text = "; ".join(reasons)
    return room, f"{text[0].upper()}{text[1:]}."


def larger_batch(evidence: Evidence, known: Known) -> Advice | None:
    """Raise batchSize, last, if batches leave full, requests queue and larger batches cost little more."""
    size, cost = evidence.batch_size, evidence.cost
    if size is None or (evidence.full or 0) < 0.5 or evidence.in_flight <= size * evidence.workers:
        return None
    if cost is not None and cost.of(2 * size) > 1.6 * cost.of(size):
        return None
    _, reason = room_for_workers(evidence, known)
    saved = f" (fitted: {cost.of(size):.0f} ms for {size}, {cost.of(2 * size):.0f} for {2 * size})" if cost else ""
    why = (
        f"Batches leave full, {evidence.in_flight:.0f} requests are in flight, and there is no capacity for more "
        f"workers. {reason} A larger batch shares its fixed cost{saved}."
    )
    disproof = (
        "The throughput should rise and the queue wait should fall. If the handler time doubles with the batch, each "
        "request only waits for more other requests: revert the change."
    )
    return Advice(Change("batchSize", size, 2 * size), why, disproof, ("maxBatchDelay", "workers"))


def cheaper_model(evidence: Evidence, known: Known) -> Advice | None:
    """No setting helps: the model itself must get faster, or the load smaller."""
    _, reason = room_for_workers(evidence, known)
    why = (
        f"{evidence.handler:.0f} of {evidence.latency:.0f} ms are spent in the handler, and no setting of the server "
        f"shortens them. {reason} Make a batch faster: another engine or data type (docs/engines.md), no padding "
        "(docs/speed.md), a smaller model; or serve it from more machines."
    )
    disproof = (
        "If the handler's stages show that most of its time is not inference, the model is not the bottleneck: look at "
        "the largest stage first."
    )
    return Advice(None, why, disproof, ("maxBatchDelay", "batchSize", "workers"))


def look_outside(evidence: Evidence, _known: Known) -> Advice | None:
    """No setting helps: the time is neither a wait nor in the handler."""
    why = (
        f"{evidence.outside:.0f} ms of {evidence.latency:.0f} ms are in no metric of the server: large answers that "
        "TorchServe writes as JSON (return bytes from the handler to avoid it), the network, or an overloaded client."
    )
    disproof = "If a client on the server's machine measures the same, it is not the network."
    return Advice(None, why, disproof, ("maxBatchDelay", "batchSize", "workers"))


WHEN_WAITING: Final[tuple[Rule, ...]] = (
    spread_over_workers,
    shorter_delay_first,
    fewer_threads,
    more_workers,
    larger_batch,
    cheaper_model,
)

RULES: Final[dict[Regime, tuple[Rule, ...]]] = {
    Regime.IDLE: (shorter_delay,),
    Regime.SEQUENTIAL: (shorter_delay,),
    Regime.ASSEMBLY: (shorter_delay, more_workers),
    Regime.QUEUE: WHEN_WAITING,
    Regime.FULL: WHEN_WAITING,
    Regime.COMPUTE: WHEN_WAITING,
    Regime.OUTSIDE: (look_outside,),
}
