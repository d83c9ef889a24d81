"""A batch handler in the style of TorchServe's example for Hugging Face models.

examples/Huggingface_Transformers/Transformer_handler_generalized.py of pytorch/serve tokenizes each request separately,
pads it to ``max_length`` (150 in its settings), joins the rows with ``torch.cat``, and processes the output row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from competitor import Competitor

MAX_LENGTH = 150


class ExampleStyle(Competitor):
    """One forward pass per batch, with every text padded or truncated to 150 tokens."""

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute vectors of length 1, one row per text."""
        ids, mask = self._encode(texts[0])
        for text in texts[1:]:
            own_ids, own_mask = self._encode(text)
            ids, mask = torch.cat((ids, own_ids), 0), torch.cat((mask, own_mask), 0)
        vectors = self.embed({"input_ids": ids, "attention_mask": mask})
        return torch.cat([vectors[row].unsqueeze(0) for row in range(len(vectors))])

    def _encode(self, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        options = {"padding": "max_length", "truncation": True, "max_length": MAX_LENGTH, "return_tensors": "pt"}
        encoded = self.tokenizer(text, **options)
        return encoded["input_ids"], encoded["attention_mask"]
