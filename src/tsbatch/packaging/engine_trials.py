"""What became of an engine that was tried, and which one is chosen. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tsbatch.errors import UsageError
from tsbatch.settings import Dtype

BOUND: Final = 0.9999
"""Least agreement of every answer with eager float32, one by one."""
HEADS: Final = ("engine", "dtype", "batching", "one by one/s", "batches/s", "agreement", "load s", "")


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one candidate.

    Attributes:
        engine: its name.
        dtype: what it computed with.
        batching: packed, bucketed or padded; None when it did not load, as all that follows.
        one_by_one: answers a second to requests that come alone.
        batched: answers a second in batches of the archive's size.
        agreement: of its worst answer with eager float32 one by one: the cosine, for vectors of one length.
        load_seconds: from nothing to ready.
        problem: why it cannot be chosen, None when it can.
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
        """The row of a table, under :data:`HEADS`."""
        rates = [None if rate is None else f"{rate:.1f}" for rate in (self.one_by_one, self.batched)]
        agreement = None if self.agreement is None else f"{self.agreement:.6f}"
        seconds = None if self.load_seconds is None else f"{self.load_seconds:.1f}"
        return (self.engine, self.dtype, self.batching, *rates, agreement, seconds, self.problem or "")


def fastest(trials: Sequence[Trial]) -> Trial:
    """The one with the best rate in batches, among those without a problem.

    Raises:
        UsageError: there is none.
    """
    able = [trial for trial in trials if trial.problem is None]
    if not able:
        raise UsageError("; ".join(f"--engine {trial.engine} ({trial.dtype}): {trial.problem}" for trial in trials))
    return max(able, key=lambda trial: trial.batched or 0.0)
