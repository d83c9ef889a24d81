"""A batch handler as the tutorials of transformers show it: one call of the tokenizer, padded to the longest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from competitor import LONGEST, Competitor


class Padded(Competitor):
    """One forward pass a batch, every text padded to the longest one in it."""

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Vectors of length 1, one row a text."""
        options = {"padding": True, "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
        return self.embed(self.tokenizer(list(texts), **options))
