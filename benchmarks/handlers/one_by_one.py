"""A handler that loops over its batch: right, and what most people have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from competitor import LONGEST, Competitor


class OneByOne(Competitor):
    """One forward pass a text, without padding."""

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Vectors of length 1, one row a text."""
        return torch.cat([self._vector(text) for text in texts])

    def _vector(self, text: str) -> torch.Tensor:
        return self.embed(self.tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt"))
