"""What can be turned, and which values are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tsbatch.diagnosis.advice import Change, Setting

SETTING_ORDER: Final[tuple[Setting, ...]] = ("maxBatchDelay", "workers", "threads", "batchSize")
"""In which the knobs are turned when nothing speaks for another one: the cheapest to be wrong about first."""

FIELDS: Final[Mapping[Setting, str]] = {
    "maxBatchDelay": "delay",
    "workers": "workers",
    "threads": "threads",
    "batchSize": "batch_size",
}
DELAYS: Final = (1, 2, 5, 10, 20, 50, 100, 200)
BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)
MAX_WORKERS: Final = 8
MEMORY_MARGIN: Final = 0.9
"""Of the memory that is there, what the workers may take."""

Value = int | None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of a model that are tuned.

    Attributes:
        workers: processes that serve it.
        batch_size: batchSize, the most requests in a batch.
        delay: maxBatchDelay, ms.
        threads: torch threads of one worker; None leaves the archive's own setting as it is.
    """

    workers: int
    batch_size: int
    delay: int
    threads: int | None = None

    def value(self, setting: Setting) -> Value:
        """What one knob stands at."""
        found: Value = getattr(self, FIELDS[setting])
        return found

    def turned(self, setting: Setting, value: Value) -> ModelSettings:
        """The same with one knob turned."""
        change: dict[str, Any] = {FIELDS[setting]: value}
        return replace(self, **change)

    def differences(self, other: ModelSettings) -> list[Setting]:
        """Which knobs stand elsewhere in ``other``."""
        return [setting for setting in SETTING_ORDER if self.value(setting) != other.value(setting)]

    def yaml(self) -> str:
        """The lines of model-config.yaml that set them.

        A delay of 0 or less, which only the management API can set, would become 100 ms there: it is 1.
        """
        written = replace(self, delay=max(1, self.delay))
        given = [setting for setting in SETTING_ORDER if written.value(setting) is not None]
        return "\n".join(Change(setting, None, written.value(setting) or 0).yaml() for setting in given)

    def __str__(self) -> str:
        told = f"workers {self.workers}, batchSize {self.batch_size}, maxBatchDelay {self.delay}"
        return told if self.threads is None else f"{told}, threads {self.threads}"

    def to_json(self) -> dict[str, Value]:
        """By name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Space:
    """The values that are tried for each knob, ascending."""

    workers: Sequence[int]
    batch_sizes: Sequence[int]
    delays: Sequence[int]
    threads: Sequence[Value] = (None,)

    def values(self, setting: Setting) -> Sequence[Value]:
        """Those of one knob."""
        return {
            "workers": self.workers,
            "batchSize": self.batch_sizes,
            "maxBatchDelay": self.delays,
            "threads": self.threads,
        }[setting]

    def turns(self, settings: ModelSettings, setting: Setting) -> list[ModelSettings]:
        """Every other position of one knob."""
        return [settings.turned(setting, value) for value in self.values(setting) if value != settings.value(setting)]

    def every(self) -> list[ModelSettings]:
        """Every combination."""
        return [
            ModelSettings(workers, size, delay, threads)
            for workers in self.workers
            for size in self.batch_sizes
            for delay in self.delays
            for threads in self.threads
        ]

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return {name: list(values) for name, values in asdict(self).items()}


def space_around(
    start: ModelSettings, known: Mapping[str, Any], *, memory: int | None = None, threads: bool = False
) -> Space:
    """The usual values, and as many workers as cores and memory allow.

    Args:
        start: what there is; its values are always among them.
        known: ``cores``, ``worker_cores`` (that one keeps busy while it computes), ``worker_memory`` and
            ``free_memory`` in bytes; None or missing is unknown.
        memory: bytes that all workers together may take.
        threads: whether the archive's handler can be told its threads.
    """
    cores = known.get("cores")
    most = MAX_WORKERS
    if cores is not None:
        busy = known.get("worker_cores")
        # A worker that mostly waits leaves its core to others.
        most = min(most, max(cores, int(cores / max(busy, 0.01)) if busy is not None else cores))
    each, free = known.get("worker_memory"), known.get("free_memory")
    if each:
        room = [] if free is None else [start.workers + int(MEMORY_MARGIN * free / each)]
        most = min([most, *room, *([] if memory is None else [memory // each])])
    tried: list[Value] = [None, *sorted({1, cores} if cores else {1})]
    return Space(
        workers=_with(range(1, most + 1), start.workers),
        batch_sizes=_with(BATCH_SIZES, start.batch_size),
        delays=_with(DELAYS, start.delay),
        threads=[start.threads, *(value for value in tried if value != start.threads)] if threads else (start.threads,),
    )


def _with(values: Sequence[int], value: int) -> list[int]:
    return sorted({*values, value})
