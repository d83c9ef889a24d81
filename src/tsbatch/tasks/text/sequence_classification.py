"""What the tasks on AutoModelForSequenceClassification share: texts, or pairs of texts, to one row of logits each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar, Final

import torch

from tsbatch.errors import LoadError, PayloadTooLarge
from tsbatch.tasks.shared.equal_shapes import Groups, run_groups, same_shape
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.worker.resources import to_device


class SequenceClassificationHandler(TextHandler):
    """Base of text-classification, zero-shot-classification and reranking."""

    takes_types: ClassVar[bool] = True
    end: int | None = None
    """The mark at the end of a text, where the model reads its answer off it: the encoder-decoders (BART, T5) do. They
    take rows with as many of them alone, and a pair has more than a text."""

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
        if getattr(config, "is_encoder_decoder", False):
            self.end = config.eos_token_id

    def collate(self, features: Sequence[Any]) -> Any:
        """Token ids of shape (n, longest); where end marks count, a group of them for each number of marks."""
        if self.end is None:
            return super().collate(features)
        places = same_shape([int((feature.ids == self.end).sum()) for feature in features])
        batches = [TextHandler.collate(self, [features[place] for place in group]) for group in places]
        return Groups(places, batches, [None] * len(places))

    def inference(self, tensors: Any) -> Any:
        """Token ids (n, longest), or groups of them, to logits (n, classes)."""
        if isinstance(tensors, Groups):
            return run_groups(tensors, lambda batch, _: self._logits(batch))
        return self._logits(tensors)

    def _logits(self, batch: Any) -> torch.Tensor:
        logits: torch.Tensor = self.model(**to_device(batch, self.device)).logits
        return logits.float()


PAIR_CHARACTERS: Final = 10_000_000
"""Of all pairs of a request together: a text counts, and is read, once for each label or passage."""


def check_pairs(characters: int) -> None:
    """Refuse a small request that makes very long work.

    Args:
        characters: of all its pairs together.

    Raises:
        PayloadTooLarge: too many.
    """
    if characters > PAIR_CHARACTERS:
        message = f"the pairs of the request have {characters:,} characters together, and at most {PAIR_CHARACTERS:,}"
        raise PayloadTooLarge(f"{message} are taken", expected="shorter texts, or several requests")


def spans(counts: Sequence[int]) -> list[slice]:
    """Where each item's pairs are in the flat list of all; ``counts`` is how many each has."""
    ends = list(accumulate(counts))
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
