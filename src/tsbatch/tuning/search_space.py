"""The tuned settings of a model, and the values to try."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tsbatch.diagnosis.advice import Change, Setting

SETTING_ORDER: Final[tuple[Setting, ...]] = ("maxBatchDelay", "workers", "threads", "batchSize")
"""Default order of changes: the settings that are cheapest to be wrong about first."""

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
"""Share of the free memory that additional workers may take."""

Value = int | None


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of a model that are tuned.

    Attributes:
        workers: number of worker processes.
        batch_size: maximum batch size (batchSize).
        delay: maxBatchDelay, in ms.
        threads: torch threads per worker; None keeps the archive's own setting.
    """

    workers: int
    batch_size: int
    delay: int
    threads: int | None = None

    def value(self, setting: Setting) -> Value:
        """Return the value of one setting."""
        found: Value = getattr(self, FIELDS[setting])
        return found

    def with_value(self, setting: Setting, value: Value) -> ModelSettings:
        """Return the settings with one of them changed."""
        change: dict[str, Any] = {FIELDS[setting]: value}
        return replace(self, **change)

    def differences(self, other: ModelSettings) -> list[Setting]:
        """Return the settings that have another value in ``other``."""
        return [setting for setting in SETTING_ORDER if self.value(setting) != other.value(setting)]

    def changes_to(self, other: ModelSettings) -> str:
        """Return the changes that lead to ``other``, like ``workers 1 → 2``."""
        return ", ".join(f"{self._text(one)} → {other._value_text(one)}" for one in self.differences(other))

    def values_of(self, settings: Iterable[Setting]) -> str:
        """Return some of the settings with their values, like ``workers 2``."""
        return ", ".join(map(self._text, settings))

    def _text(self, setting: Setting) -> str:
        return f"{setting} {self._value_text(setting)}"

    def _value_text(self, setting: Setting) -> str:
        value = self.value(setting)
        return "unchanged" if value is None else str(value)

    def yaml(self) -> str:
        """Return the lines of model-config.yaml that set them.

        A delay of 0 or less, which only the management API can set, would become 100 ms there, so it is written as 1.
        """
        written = replace(self, delay=max(1, self.delay))
        given = [setting for setting in SETTING_ORDER if written.value(setting) is not None]
        return "\n".join(Change(setting, None, written.value(setting) or 0).yaml() for setting in given)

    def __str__(self) -> str:
        text = f"workers={self.workers}, batchSize={self.batch_size}, maxBatchDelay={self.delay}"
        return text if self.threads is None else f"{text}, threads={self.threads}"


@dataclass(frozen=True, slots=True)
class Space:
    """The values that are tried for each setting, ascending."""

    workers: Sequence[int]
    batch_sizes: Sequence[int]
    delays: Sequence[int]
    threads: Sequence[Value] = (None,)

    def values(self, setting: Setting) -> Sequence[Value]:
        """Return those of one setting."""
        return dict(zip(FIELDS, (self.delays, self.workers, self.threads, self.batch_sizes), strict=True))[setting]

    def alternatives(self, settings: ModelSettings, setting: Setting) -> list[ModelSettings]:
        """Return the settings with every other value of one of them."""
        others = [value for value in self.values(setting) if value != settings.value(setting)]
        return [settings.with_value(setting, value) for value in others]

    def combinations(self) -> list[ModelSettings]:
        """Return every combination."""
        every = itertools.product(self.workers, self.batch_sizes, self.delays, self.threads)
        return list(itertools.starmap(ModelSettings, every))


def space_around(
    start: ModelSettings, known: Mapping[str, Any], *, memory: int | None = None, threads: bool = False
) -> Space:
    """Return the usual values, with as many workers as cores and memory allow.

    Args:
        start: the initial settings; their values are always included.
        known: ``cores``, ``worker_cores`` (that one worker keeps busy while it computes), ``worker_memory`` and
            ``free_memory`` in bytes; None or missing if unknown.
        memory: bytes that all workers together may take.
        threads: whether the archive's handler has a setting for threads.
    """
    cores = known.get("cores")
    limit = MAX_WORKERS
    if cores is not None:
        busy = known.get("worker_cores")
        # A worker that mostly waits leaves its core to others.
        limit = min(limit, max(cores, int(cores / max(busy, 0.01)) if busy is not None else cores))
    each, free = known.get("worker_memory"), known.get("free_memory")
    if each:
        room = [] if free is None else [start.workers + int(MEMORY_MARGIN * free / each)]
        limit = min([limit, *room, *([] if memory is None else [memory // each])])
    tried: list[Value] = [None, *sorted({1, cores} if cores else {1})]
    return Space(
        workers=_with(range(1, limit + 1), start.workers),
        batch_sizes=_with(BATCH_SIZES, start.batch_size),
        delays=_with(DELAYS, start.delay),
        threads=[start.threads, *(value for value in tried if value != start.threads)] if threads else (start.threads,),
    )


def _with(values: Sequence[int], value: int) -> list[int]:
    return sorted({*values, value})
