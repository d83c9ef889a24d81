"""The next single change, why, what would prove it wrong, and what not to touch.

One change at a time, in the order that works: confirm which wait dominates; lower maxBatchDelay when batches leave by
time-out and not full; add workers when the queue dominates and memory and cores allow it; batchSize last. Each rule
below either speaks or passes; the first of a regime's rules that speaks is the advice.
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
"""A wait of at least this share of the latency is taken on before anything else is added."""

SUSTAINABLE: Final = 0.8
"""Workers that would be busier than this without batches need them."""

MEMORY_MARGIN: Final = 0.9
"""Of the free memory, what new workers may take."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting, from ``old`` (None: unknown) to ``new``."""

    setting: Setting
    old: int | None
    new: int

    def __str__(self) -> str:
        return f"{self.setting} {'' if self.old is None else f'{self.old} '}→ {self.new}"

    def yaml(self) -> str:
        """The lines of model-config.yaml that make it."""
        if self.setting == "workers":
            return f"minWorkers: {self.new}\nmaxWorkers: {self.new}"
        if self.setting == "threads":
            return f"tsbatch:\n  threads: {self.new}"
        return f"{self.setting}: {self.new}"

    def command(self, model: str, engine: str | None = None) -> str | None:
        """The command that makes it on a running server; None when the archive must change."""
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
    """What to do next.

    Attributes:
        change: the single change; None when no setting would help.
        why: the reason, with numbers.
        disproof: what to see afterwards that would prove it wrong.
        leave: what not to touch meanwhile.
    """

    change: Change | None
    why: str
    disproof: str
    leave: Sequence[str] = ()

    def to_json(self, model: str, engine: str | None = None) -> dict[str, Any]:
        """As one JSON object, with the command and the lines of YAML."""
        made = {"command": self.change.command(model, engine), "yaml": self.change.yaml()} if self.change else {}
        return {**asdict(self), **made}


Rule = Callable[[Evidence, Known], Advice | None]


def advise(regime: Regime, evidence: Evidence, known: Known) -> Advice:
    """The next step in this regime."""
    for rule in RULES[regime]:
        advice = rule(evidence, known)
        if advice is not None:
            return advice
    return NOTHING


NOTHING: Final = Advice(
    None,
    "No wait is worth a change: what is left of the latency is the model's own.",
    "A load that is higher, or comes in bursts, can show another picture: measure under the one that counts.",
    ("batchSize", "maxBatchDelay", "workers"),
)


def shorter_delay(evidence: Evidence, known: Known) -> Advice | None:
    """Lower maxBatchDelay when batches leave by time-out and requests pay for it."""
    del known
    delay = evidence.delay if evidence.delay is not None else evidence.held
    if delay is None or delay <= 1.5 or (evidence.full or 0) >= 0.5 or evidence.share("assembly") < DUE:
        return None
    needed = evidence.cost is not None and evidence.rate * evidence.cost.of(1) / 1000 > SUSTAINABLE * evidence.workers
    new = max(1, round(delay / 2)) if needed else 1
    why = (
        f"{100 * (1 - (evidence.full or 0)):.0f} % of the batches leave because maxBatchDelay is over, not because "
        f"they are full, and each request pays {evidence.assembly:.0f} ms for it. "
    )
    why += (
        "Half of it for now: without any wait the workers could not keep up one by one."
        if needed
        else "1 ms takes what is queued and waits for nobody; while a worker computes, requests queue up and still "
        "share the next batch."
    )
    disproof = (
        f"P50 and P99 should fall by nearly {evidence.assembly:.0f} ms. If the queue wait grows by as much instead, "
        "the batches were worth waiting for: go back."
    )
    return Advice(Change("maxBatchDelay", round(delay), new), why, disproof, ("batchSize", "workers"))


def shorter_delay_first(evidence: Evidence, known: Known) -> Advice | None:
    """Lower maxBatchDelay before anything else is added, when it is a good part of the latency."""
    return shorter_delay(evidence, known) if evidence.share("assembly") >= WORTH else None


def spread_over_workers(evidence: Evidence, known: Known) -> Advice | None:
    """Smaller batches when one worker takes all requests while the others stand idle."""
    del known
    if evidence.workers < 2 or evidence.at_once is None or not evidence.batch or not evidence.largest:
        return None
    fair = math.ceil(evidence.in_flight / evidence.workers)
    idle = evidence.at_once < 1 + 0.5 * (evidence.workers - 1)
    if not idle or evidence.largest < 1.5 * fair or fair < 1:
        return None
    why = (
        f"{evidence.largest} requests fit into one batch and about {evidence.in_flight:.0f} are on their way at once: "
        f"one worker takes them all and the others stand idle ({evidence.at_once:.1f} of {evidence.workers} workers "
        f"compute at once). Batches of {fair} give each worker its share."
    )
    disproof = (
        f"The batches in the handler at once should rise towards {evidence.workers} and the handler time fall. If the "
        "handler time stays, a batch costs the same whatever its size: go back."
    )
    return Advice(
        Change("batchSize", evidence.batch_size or evidence.largest, fair), why, disproof, ("workers", "maxBatchDelay")
    )


def fewer_threads(evidence: Evidence, known: Known) -> Advice | None:
    """Divide the cores when the workers' threads are more than there are."""
    if known.threads is None or known.cores is None or known.threads * evidence.workers <= known.cores:
        return None
    new = max(1, known.cores // evidence.workers)
    if new >= known.threads:
        return None
    why = (
        f"{evidence.workers} workers with {known.threads} threads each compete for {known.cores} cores; threads that "
        "wait for each other make every batch slower."
    )
    disproof = "The handler time should fall. If it does not, the threads were not what it waited for: go back."
    return Advice(Change("threads", known.threads, new), why, disproof, ("workers", "batchSize"))


def more_workers(evidence: Evidence, known: Known) -> Advice | None:
    """Add workers when requests wait for a free one and the machine has room."""
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
        "or less. If the handler time grows instead, the workers compete for the same cores: go back."
    )
    leave = ("batchSize", "maxBatchDelay", "jobQueueSize: a longer queue makes the wait longer, not the server faster")
    return Advice(Change("workers", evidence.workers, new), why, disproof, leave)


def room_for_workers(evidence: Evidence, known: Known) -> tuple[int, str]:
    """How many more workers the machine has room for, and the sum that says so."""
    room, said = evidence.workers, []
    if known.free_memory is not None and known.worker_memory:
        by_memory = int(MEMORY_MARGIN * known.free_memory / known.worker_memory)
        room = min(room, by_memory)
        said.append(
            f"one more takes {known.worker_memory / 2**20:.0f} MiB of {known.free_memory / 2**20:.0f} MiB free memory"
        )
    if known.cores is not None:
        used = known.worker_cores
        most = known.cores if used is None else max(known.cores, int(known.cores / max(used, 0.01)))
        room = min(room, max(0, most - evidence.workers))
        each = "up to one each" if used is None else f"{used:.2f} each while they compute"
        said.append(f"of {known.cores} cores the workers ({evidence.workers}) use {each}")
    if not said:
        said.append("whether memory and cores allow it, this source cannot tell: look first")
    text = "; ".join(said)
    return room, f"{text[0].upper()}{text[1:]}."


def larger_batch(evidence: Evidence, known: Known) -> Advice | None:
    """Larger batches, last, when they leave full, requests queue and one more in a batch costs little."""
    size, cost = evidence.batch_size, evidence.cost
    if size is None or (evidence.full or 0) < 0.5 or evidence.in_flight <= size * evidence.workers:
        return None
    if cost is not None and cost.of(2 * size) > 1.6 * cost.of(size):
        return None
    _, reason = room_for_workers(evidence, known)
    saved = f" (fitted: {cost.of(size):.0f} ms for {size}, {cost.of(2 * size):.0f} for {2 * size})" if cost else ""
    why = (
        f"Batches leave full, {evidence.in_flight:.0f} requests are on their way at once, and there is no room for "
        f"more workers. {reason} A larger batch shares its fixed cost{saved}."
    )
    disproof = (
        "Requests a second should rise and the queue wait fall. If the handler time doubles with the batch, every "
        "request only waits for more of the others: go back."
    )
    return Advice(Change("batchSize", size, 2 * size), why, disproof, ("maxBatchDelay", "workers"))


def cheaper_model(evidence: Evidence, known: Known) -> Advice | None:
    """Nothing to set: the model itself must get cheaper, or the load smaller."""
    _, reason = room_for_workers(evidence, known)
    why = (
        f"{evidence.handler:.0f} of {evidence.latency:.0f} ms are the handler's, and no setting of the server shortens "
        f"them. {reason} Make a batch cheaper: another engine or data type (docs/engines.md), no padding "
        "(docs/speed.md), a smaller model; or serve it from more machines."
    )
    disproof = (
        "If the handler's stages show that most of its time is not inference, the model is not what is slow: look at "
        "that stage first."
    )
    return Advice(None, why, disproof, ("maxBatchDelay", "batchSize", "workers"))


def look_outside(evidence: Evidence, known: Known) -> Advice | None:
    """Nothing to set: the time passes outside every wait and the handler."""
    del known
    why = (
        f"{evidence.outside:.0f} ms of {evidence.latency:.0f} ms are in no metric of the server: large answers that "
        "TorchServe writes as JSON (a handler that returns bytes avoids it), the network, or a client that is itself "
        "busy."
    )
    disproof = "If a client on the server's own machine sees the same, it is not the network."
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
