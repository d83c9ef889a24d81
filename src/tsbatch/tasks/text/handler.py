"""The text front end: what every task on transformers text models shares.

Texts become arrays of token ids in one call of the tokenizer for the whole batch; a micro-batch is padded in
``collate`` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from tsbatch.batching.strategy import Choice
from tsbatch.errors import LoadError, PayloadTooLarge, SettingsError, Unprocessable
from tsbatch.models.packing import PackedEncoder, prove
from tsbatch.tasks.shared.pretrained import PretrainedHandler
from tsbatch.tasks.shared.task_handler import first_line
from tsbatch.tasks.text.token_features import Ids, Tokens, pad

UNLIMITED = 1_000_000
"""A tokenizer without a limit has a model_max_length of 1e30; over this it counts as none."""
EXAMPLES = (
    "A short one.",
    "A sentence of ordinary length, like the ones that people send all day. " * 2,
    "word " * 120,
)


class TextHandler(PretrainedHandler):
    """Base of the text tasks: tokenizer, token ids as features, padding in ``collate``."""

    wants: ClassVar[Literal["text", "bytes", "json"]] = "text"
    item_ndim: ClassVar[int | None] = 0
    deterministic: ClassVar[bool] = True
    takes_engines: ClassVar[bool] = True
    model_inputs: ClassVar[Sequence[str]] = ("input_ids",)
    takes_types: ClassVar[bool] = False
    """Features are :class:`Tokens`, which have the token types of the tokenizer, if it makes any."""
    encoder: PackedEncoder | None = None
    """The model while it runs packed."""

    def load_tokenizer(self) -> Any:
        """The tokenizer of the model folder.

        Raises:
            LoadError: what transformers said, in one line; its files were not packed; or it is not this model's.
        """
        tokenizer = self.load_pretrained_tokenizer()
        ids, known = tokenizer(EXAMPLES[0])["input_ids"], getattr(self.model.config, "vocab_size", None)
        if isinstance(known, int) and max(ids, default=0) >= known:
            raise LoadError(
                f"the tokenizer makes token {max(ids)}, and the model's end at {known - 1}: they are no pair"
            )
        return tokenizer

    def examples(self) -> Sequence[Any]:
        """Texts of the lengths that clients send."""
        return EXAMPLES

    def choose_batching(self) -> Choice:
        """Packed where this model proves on examples that it may; see ``models.packing``.

        Raises:
            SettingsError: packing is asked for and cannot be used.
        """
        asked = self.settings.batching.mode
        if asked == "bucketed":
            return Choice("bucketed", "asked for in model-config.yaml")
        if asked == "padded":
            return super().choose_batching()
        reason = self._pack()
        if reason is None:
            return Choice("packed", "the packed run gave the same answers as one by one")
        if asked == "packed":
            raise SettingsError(f"model-config.yaml: tsbatch.batching.mode: packed cannot be used: {reason}")
        return Choice("bucketed", f"packing cannot be used: {reason}")

    def _pack(self) -> str | None:
        if not self.engine.packs:
            return f"the engine {self.settings.engine} takes padded batches alone"
        if not hasattr(self.model, "base_model"):
            return "not a transformers model"
        encoder = PackedEncoder(self.model)
        # Two and short, since with a big model each pass delays the first answer; but one longer than a sliding window.
        window = getattr(self.model.config, "sliding_window", None) or 0
        try:
            reason = prove(encoder, self._made_up([4, 2 * window + 7]))
        except Exception as error:
            raise LoadError(f"the model cannot run on token ids alone: {first_line(error)}") from error
        if reason is None:
            encoder.on = True
            self.encoder = encoder
        else:
            encoder.remove()
        return reason

    def engine_batch(self) -> Mapping[str, torch.Tensor]:
        """Token sequences of three lengths."""
        return self._made_up([7, 3, 5])

    def _made_up(self, wanted: Sequence[int]) -> dict[str, torch.Tensor]:
        """A micro-batch of token sequences of these lengths, but none over the model's limit."""
        lengths = [length for length in wanted if length <= self.token_limit()]
        numbers, words = np.random.default_rng(0), self.model.config.vocab_size
        features: list[Any] = [numbers.integers(0, words, length) for length in lengths]
        padding = self.tokenizer.pad_token_id or 0
        for feature in features:  # RoBERTa does not count positions of padding, not even inside a text
            feature[feature == padding] = (padding + 1) % words
        if self.takes_types and "token_type_ids" in self.tokenizer.model_input_names:
            features = [Tokens(feature, np.zeros_like(feature)) for feature in features]
        batch = TextHandler.collate(self, features)  # a task may add to it what is not for the model
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def decode_item(self, value: Any) -> Any:
        """A text within the limit.

        Raises:
            PayloadTooLarge: more characters than ``tsbatch.limits.characters``.
        """
        limit = self.settings.limits.characters
        if len(value) > limit:
            raise PayloadTooLarge(f"the text has {len(value):,} characters, over the limit of {limit:,}")
        return value

    def tokenize(self, texts: Sequence[str], max_length: int) -> tuple[list[Ids], list[int]]:
        """Token ids of each text, cut at ``max_length``, and how many tokens each would have had uncut."""
        ids = self._ids(texts)
        counts = [len(row) for row in ids]
        long = [place for place, count in enumerate(counts) if count > max_length]
        if long:
            cut = self._ids([texts[place] for place in long], truncation=True, max_length=max_length)
            for place, row in zip(long, cut, strict=True):
                ids[place] = row
        return [np.asarray(row, dtype=np.int64) for row in ids], counts

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        truncation: str | bool = True,
    ) -> list[Tokens]:
        """Texts, or pairs of texts, as the model takes them, in one call of the tokenizer.

        Args:
            texts: the texts, or the first of each pair.
            pairs: the second of each pair.
            max_length: tokens to cut at, special ones included; None for :meth:`token_limit`.
            truncation: which text of a pair is cut: True: the longest first; ``only_first``; ``only_second``; False.

        Returns:
            One entry a text or pair, with token types where the tokenizer makes them.
        """
        typed = "token_type_ids" in self.tokenizer.model_input_names
        encoded = self.tokenizer(
            list(texts),
            None if pairs is None else list(pairs),
            truncation=truncation,
            max_length=max_length or self.token_limit(),
            return_attention_mask=False,
            return_token_type_ids=typed,
            verbose=False,
        )
        ids = [np.asarray(row, dtype=np.int64) for row in encoded["input_ids"]]
        types = [np.asarray(row, dtype=np.int64) for row in encoded["token_type_ids"]] if typed else [None] * len(ids)
        return [Tokens(row, kind) for row, kind in zip(ids, types, strict=True)]

    def fit(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, truncation: str | bool = True
    ) -> tuple[list[Tokens | Unprocessable], list[int]]:
        """Texts, or pairs, cut to :meth:`token_limit` where they are longer.

        Args:
            texts: as for :meth:`encode`.
            pairs: as for :meth:`encode`.
            truncation: as for :meth:`encode`.

        Returns:
            Tokens for each, or in their place an error where the text that must not be cut is too long by itself; and
            how many tokens each would have had uncut.
        """
        features: list[Tokens | Unprocessable] = list(self.encode(texts, pairs, truncation=False))
        counts = [len(tokens) for tokens in features if isinstance(tokens, Tokens)]
        most = self.token_limit()
        long = [place for place, count in enumerate(counts) if count > most]
        for place, cut in zip(long, self._cut(texts, pairs, long, truncation), strict=True):
            features[place] = cut
        return features, counts

    def _cut(
        self, texts: Sequence[str], pairs: Sequence[str] | None, places: Sequence[int], truncation: str | bool
    ) -> list[Tokens | Unprocessable]:
        """The texts at ``places`` cut in one call, which raises when one cannot be cut: then half by half."""
        if not places:
            return []
        most = self.token_limit()
        chosen = ([texts[place] for place in places], pairs and [pairs[place] for place in places])
        unfit = Unprocessable(f"the text that is not cut has more tokens than the model takes, {most}")
        try:
            cut = self.encode(*chosen, truncation=truncation)
        except Exception as error:  # the tokenizers package has no class of its own for this
            if "too short" not in str(error):
                raise
            if len(places) == 1:
                return [unfit]
            halves = places[: len(places) // 2], places[len(places) // 2 :]
            return [feature for half in halves for feature in self._cut(texts, pairs, half, truncation)]
        return [tokens if len(tokens) <= most else unfit for tokens in cut]  # one in Python leaves it as it was

    def _ids(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        encoded = self.tokenizer(
            list(texts), return_attention_mask=False, return_token_type_ids=False, verbose=False, **options
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def token_limit(self) -> int:
        """The longest input of the model in tokens: what tokenizer and model config allow, whichever is less."""
        limits = [self.tokenizer.model_max_length]
        config = self.model.config
        positions = getattr(config, "max_position_embeddings", None)
        if isinstance(positions, int) and positions > 0:
            # RoBERTa and its kin (CamemBERT, MPNet ...) count positions from padding_idx + 1; others have no such row.
            encoder = getattr(self.model, "base_model", self.model)  # a model with a head has it inside
            table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
            padding = getattr(table, "padding_idx", None)
            limits.append(positions - (padding + 1 if isinstance(padding, int) else 0))
        return int(min(limit for limit in [*limits, UNLIMITED] if limit))

    def lengths(self, features: Sequence[Any]) -> Sequence[int]:
        """Tokens of each feature."""
        return [len(feature) for feature in features]

    def collate(self, features: Sequence[Tokens | Ids]) -> dict[str, torch.Tensor]:
        """Token ids of shape (n, longest) padded on the right, with their attention mask, and token types."""
        return pad(
            features,
            padding=self.tokenizer.pad_token_id or 0,
            type_padding=getattr(self.tokenizer, "pad_token_type_id", 0),
        )
