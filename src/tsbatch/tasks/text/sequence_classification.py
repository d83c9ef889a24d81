"""What the tasks on AutoModelForSequenceClassification share: texts, or pairs of texts, to one row of logits each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch

from tsbatch.errors import LoadError
from tsbatch.resources import to_device
from tsbatch.tasks.text.handler import TextHandler


class SequenceClassificationHandler(TextHandler):
    """Base of text-classification, zero-shot-classification and reranking."""

    takes_types: ClassVar[bool] = True

    def load_model(self) -> Any:
        """The model with its head.

        Raises:
            LoadError: the folder has no head; transformers would make one up.
        """
        from transformers import AutoModelForSequenceClassification

        return self.load_pretrained(AutoModelForSequenceClassification, complete=True)

    def prepare(self) -> None:
        """See to it that decoders, which read their answer off the last token, know padding from text.

        Raises:
            LoadError: neither tokenizer nor config has a token to pad with.
        """
        config = self.model.config
        config.use_cache = False  # a decoder's keys and values are of no use after one pass
        if getattr(config, "pad_token_id", None) is None:
            padding = self.tokenizer.pad_token_id
            config.pad_token_id = self.tokenizer.eos_token_id if padding is None else padding
        if config.pad_token_id is None:
            raise LoadError("config.json: no pad_token_id, and the tokenizer has neither padding nor end; set one")
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token_id = config.pad_token_id

    def inference(self, tensors: Any) -> torch.Tensor:
        """Token ids (n, longest) to logits (n, classes)."""
        logits: torch.Tensor = self.model(**to_device(tensors, self.device)).logits
        return logits.float()


def spans(counts: Sequence[int]) -> list[slice]:
    """Where each item's pairs are in the flat list of all; ``counts`` is how many each has."""
    ends = list(accumulate(counts))
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
