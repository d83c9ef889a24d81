"""How the features of a handler share a forward pass, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Mode = Literal["packed", "bucketed", "equal", "single", "padded"]


@dataclass(frozen=True, slots=True)
class Choice:
    """How features share a forward pass.

    Attributes:
        mode: ``packed`` without padding, ``bucketed`` by length, ``equal`` only with others of equal length, ``single``
            one by one, ``padded`` in one pass.
        reason: why, as a clause; logged at load time and returned by ``describe``.
        difference: the largest difference between answers in a batch and alone that the proof saw, relative to the
            answer; None without a proof.
    """

    mode: Mode
    reason: str
    difference: float | None = None

    def cost(self, lengths: Sequence[int]) -> int:
        """Return the length units that a pass over features of these lengths computes."""
        return sum(lengths) if self.mode == "packed" else max(lengths, default=0) * len(lengths)

    def describe(self) -> dict[str, Any]:
        """Return the fields for ``describe_handle``."""
        return asdict(self)
