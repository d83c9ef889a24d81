"""A handler that loops over its batch: correct, and the most common approach."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from competitor import LONGEST, Competitor


class OneByOne(Competitor):
    """One forward pass per text, without padding."""

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute vectors of length 1, one row per text."""
        return torch.cat([self._vector(text) for text in texts])

    def _vector(self, text: str) -> torch.Tensor:
        return self.embed(self.tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt"))
