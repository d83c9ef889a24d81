"""Ratios of systems that took turns, with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one thing: their median, the least and the most."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of ``values``, of which there is at least one."""
        return cls(median(values), min(values), max(values))

    def text(self, digits: int = 2) -> str:
        """As ``1.52 (1.48 to 1.60)``."""
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Ours over theirs, turn by turn, so that a drift of the machine hits both alike."""
    return Spread.of([one / other for one, other in zip(ours, theirs, strict=True)])


def turn(things: Sequence[Thing], number: int) -> list[Thing]:
    """The order of turn ``number``: there and back, so that nobody always follows the same neighbour."""
    return list(things) if number % 2 == 0 else list(reversed(things))


def in_blocks(ordered: Sequence[Thing], size: int) -> list[list[Thing]]:
    """``ordered`` dealt out like cards, so that all blocks of ``size`` are alike.

    Raises:
        ValueError: the blocks would not be of one size.
    """
    if len(ordered) % size:
        raise ValueError(f"{len(ordered)} cannot be cut into blocks of {size}")
    blocks = len(ordered) // size
    return [list(ordered[place::blocks]) for place in range(blocks)]
