"""Results of engine trials, and the choice among them. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tsbatch.errors import UsageError
from tsbatch.settings import Dtype

BOUND: Final = 0.9999
"""Minimum agreement of every answer with eager float32 run one by one."""
COLUMNS: Final = ("engine", "dtype", "batching", "one by one/s", "batches/s", "agreement", "load s", "")


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of one candidate.

    Attributes:
        engine: the engine's name.
        dtype: the type it computed with.
        batching: packed, bucketed or padded; None, like all that follows, if it did not load.
        one_by_one: answers per second to requests that arrive alone.
        batched: answers per second in batches of the archive's size.
        agreement: agreement of its worst answer with eager float32 one by one; for vectors of one length the cosine.
        load_seconds: seconds until it was ready.
        problem: why it cannot be chosen; None if it can.
    """

    engine: str
    dtype: Dtype
    batching: str | None = None
    one_by_one: float | None = None
    batched: float | None = None
    agreement: float | None = None
    load_seconds: float | None = None
    problem: str | None = None

    def cells(self) -> tuple[str | None, ...]:
        """Return the row of a table with the columns :data:`COLUMNS`."""
        rates = [None if rate is None else f"{rate:.1f}" for rate in (self.one_by_one, self.batched)]
        agreement = None if self.agreement is None else f"{self.agreement:.6f}"
        seconds = None if self.load_seconds is None else f"{self.load_seconds:.1f}"
        return (self.engine, self.dtype, self.batching, *rates, agreement, seconds, self.problem or "")


def fastest(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the highest rate in batches, among those without a problem.

    Raises:
        UsageError: every trial has a problem.
    """
    usable = [trial for trial in trials if trial.problem is None]
    if not usable:
        raise UsageError("; ".join(f"--engine {trial.engine} ({trial.dtype}): {trial.problem}" for trial in trials))
    return max(usable, key=lambda trial: trial.batched or 0.0)
