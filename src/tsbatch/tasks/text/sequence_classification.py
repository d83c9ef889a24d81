"""The base class of the tasks on AutoModelForSequenceClassification: one row of logits for each text or pair."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, ClassVar, Final

from tsbatch.errors import LoadError, PayloadTooLarge
from tsbatch.tasks.shared.grouping import Groups, collate_groups, run_groups
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.worker.resources import to_device


class SequenceClassificationHandler(TextHandler):
    """Base of text-classification, zero-shot-classification and reranking."""

    auto_class: ClassVar[str] = "AutoModelForSequenceClassification"
    takes_types: ClassVar[bool] = True
    end: int | None = None
    """The token at the end of a text, if the model classifies by it, as encoder-decoders do (BART, T5). All rows of a
    batch must have the same number of them, and a pair has more than a text."""

    def prepare(self) -> None:
        """Make sure that decoders, which classify by the last token, can tell padding from text.

        Raises:
            LoadError: neither tokenizer nor config has a padding token.
        """
        config = self.model.config
        config.use_cache = False  # a decoder's keys and values are useless after one pass
        if getattr(config, "pad_token_id", None) is None:
            padding = self.tokenizer.pad_token_id
            config.pad_token_id = self.tokenizer.eos_token_id if padding is None else padding
        if config.pad_token_id is None:
            raise LoadError("config.json: no pad_token_id, and the tokenizer has neither padding nor end; set one")
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token_id = config.pad_token_id
        if getattr(config, "is_encoder_decoder", False):
            self.end = config.eos_token_id

    def collate(self, features: Sequence[Any]) -> Groups:
        """Token ids of shape (n, longest) for each number of end tokens; one group if these do not count."""
        counts = [0 if self.end is None else int((tokens.ids == self.end).sum()) for tokens in features]
        return collate_groups(features, counts, super().collate)

    def inference(self, tensors: Groups) -> Any:
        """Logits (n, classes) of groups of token ids (n, longest)."""
        return run_groups(tensors, lambda batch, _: self.model(**to_device(batch, self.device)).logits.float())


PAIR_CHARACTERS: Final = 10_000_000
"""The limit for all pairs of a request together: a text counts, and is read, once for each label or passage."""


def check_pairs(characters: int) -> None:
    """Refuse a small request that causes too much work.

    Args:
        characters: the characters of all its pairs together.

    Raises:
        PayloadTooLarge: there are too many.
    """
    if characters > PAIR_CHARACTERS:
        message = f"the pairs of the request have {characters:,} characters together, over the limit of "
        raise PayloadTooLarge(f"{message}{PAIR_CHARACTERS:,}", expected="shorter texts, or several requests")


def spans(counts: Sequence[int]) -> list[slice]:
    """The slice of each item's pairs in the flat list of all; ``counts`` is the number of pairs of each item."""
    ends = list(accumulate(counts))
    return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
