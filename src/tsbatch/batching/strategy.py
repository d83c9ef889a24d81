"""How the features of a handler share a forward pass, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["packed", "bucketed", "padded"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How features share a forward pass.

    Attributes:
        mode: ``packed`` without padding, ``bucketed`` by length, ``padded`` in one pass.
        reason: why, as a clause; logged at load time and returned by ``describe``.
    """

    mode: Mode
    reason: str

    def cost(self, lengths: Sequence[int]) -> int:
        """Return the length units that a pass over features of these lengths computes."""
        return sum(lengths) if self.mode == "packed" else max(lengths, default=0) * len(lengths)
