"""The way a handler's features share a forward pass, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Mode = Literal["packed", "bucketed", "padded"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How features share a pass.

    Attributes:
        mode: ``packed`` without padding, ``bucketed`` cut by length, ``padded`` in one pass.
        reason: why, in half a sentence; told in the log at load and by ``describe``.
    """

    mode: Mode
    reason: str

    def cost(self, lengths: Sequence[int]) -> int:
        """What a pass over features of these lengths computes, in length units."""
        return sum(lengths) if self.mode == "packed" else max(lengths, default=0) * len(lengths)
