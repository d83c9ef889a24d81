"""Ratios between systems that were measured in turn, with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of several measurements of the same quantity."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute the spread of ``values``, which must not be empty."""
        return cls(median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        """Format as ``1.52 (1.48 to 1.60)``."""
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"


def ratios(candidate: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Divide candidate by baseline turn by turn, so that drift of the machine affects both equally."""
    return Spread.of([one / other for one, other in zip(candidate, baseline, strict=True)])


def turn(things: Sequence[Thing], number: int) -> list[Thing]:
    """Order the systems of turn ``number``: reversed in every other turn, so that neighbours change order."""
    return list(things) if number % 2 == 0 else list(reversed(things))


def in_blocks(ordered: Sequence[Thing], size: int) -> list[list[Thing]]:
    """Deal ``ordered`` out like cards into blocks of ``size``, so that all blocks are similar.

    Raises:
        ValueError: the length is not a multiple of ``size``.
    """
    if len(ordered) % size:
        raise ValueError(f"{len(ordered)} cannot be cut into blocks of {size}")
    blocks = len(ordered) // size
    return [list(ordered[start::blocks]) for start in range(blocks)]
