"""A batch handler as in the transformers tutorials: one tokenizer call, padded to the longest text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from competitor import LONGEST, Competitor


class Padded(Competitor):
    """One forward pass per batch, with every text padded to the longest one in the batch."""

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute vectors of length 1, one row per text."""
        options = {"padding": True, "truncation": True, "max_length": LONGEST, "return_tensors": "pt"}
        return self.embed(self.tokenizer(list(texts), **options))
