"""The text front end: code that all tasks on transformers text models share.

The tokenizer turns the texts of a whole batch into token ids in one call; a micro-batch is padded in ``collate`` and
nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np
import torch

from tsbatch.batching.strategy import Choice, Mode
from tsbatch.errors import LoadError, PayloadTooLarge, SettingsError, Unprocessable, first_line
from tsbatch.models.packing import PackedEncoder, prove
from tsbatch.tasks.shared.pretrained import PretrainedHandler
from tsbatch.tasks.shared.schemas import STRING
from tsbatch.tasks.text.batch_proof import BatchProof, Proof
from tsbatch.tasks.text.token_features import Tokens, pad

logger = logging.getLogger("tsbatch")
MODES: Final[tuple[Mode, ...]] = ("packed", "bucketed", "equal", "single")
"""From the fastest to the slowest."""
_CANNOT: Final = {"packed": "packing cannot be used", "bucketed": "padding cannot be used"}
UNLIMITED = 1_000_000
"""A tokenizer without a limit has a model_max_length of 1e30; a larger one than this counts as no limit."""
TRUNCATE = '{"parameters": {"truncate": true}}'
"""How a request asks for long texts to be cut."""
EXAMPLES = (
    "A short one.",
    "A sentence of ordinary length, like the ones that people send all day. " * 2,
    "word " * 120,
)


class TextHandler(PretrainedHandler):
    """Base of the text tasks: tokenizer, token ids as features, padding in ``collate``."""

    input_schema: ClassVar[Any] = STRING
    wants: ClassVar[Literal["text", "bytes", "json"]] = "text"
    takes_engines: ClassVar[bool] = True
    model_inputs: ClassVar[Sequence[str]] = ("input_ids",)
    takes_types: ClassVar[bool] = False
    """The features of single texts have token types too, if the tokenizer makes any; those of pairs always have."""
    modes: ClassVar[Sequence[Mode]] = MODES
    """The modes that ``auto`` tries, from the fastest to the slowest."""
    encoder: PackedEncoder | None = None
    """The packed encoder, if the model runs packed."""

    def load_tokenizer(self) -> Any:
        """Load the tokenizer of the model folder.

        Raises:
            LoadError: what transformers reported, in one line; its files were not packed; or it is another model's.
        """
        tokenizer = self.load_pretrained_tokenizer()
        ids, size = tokenizer(EXAMPLES[0])["input_ids"], getattr(self.model.config, "vocab_size", None)
        if isinstance(size, int) and max(ids, default=0) >= size:
            raise LoadError(
                f"the tokenizer makes token {max(ids)}, and the model's last is {size - 1}: they do not belong together"
            )
        return tokenizer

    def examples(self) -> Sequence[Any]:
        """Texts of typical lengths."""
        return EXAMPLES

    def example(self, text: str) -> Any:
        """Return an item as clients send it, with this text; the proof of the batching uses it."""
        return text

    def choose_batching(self) -> Choice:
        """The fastest mode that proves itself; see ``tasks.text.batch_proof``.

        Raises:
            SettingsError: model-config.yaml asks for a mode that changes this model's answers.
            LoadError: the model's answers to a text alone are not repeatable.
        """
        return self._fastest_proven() if self.engine.packs else Choice("bucketed", "the engine has not started")

    def start_engine(self) -> None:
        """Start the engine; if it is not PyTorch itself, prove the batching with it."""
        super().start_engine()
        if not self.engine.packs:
            self.choice = self._fastest_proven()

    def _fastest_proven(self) -> Choice:
        asked, skips = self.settings.batching.mode, self.settings.batching.proof == "skip"
        if skips and asked != "auto" and (asked != "packed" or self._pack(proven=False) is None):
            return Choice(asked, "set in model-config.yaml, without a proof")
        proof = self._proof()
        failures: list[str] = []
        for mode in self.modes if asked == "auto" else (asked,):
            reason, difference = self._failure(mode, proof)
            if reason is None:
                choice = Choice(mode, _reason(mode, asked, failures), difference)
                logger.info("batching: %s, largest difference %.1e: %s", mode, difference, choice.reason)
                return choice
            failures.append(f"{_CANNOT.get(mode, mode + ' cannot be used')}: {reason}")
            if asked == mode:
                raise SettingsError(f"model-config.yaml: tsbatch.batching.mode: {mode} cannot be used: {reason}")
        raise AssertionError("one by one equals itself")

    def _proof(self) -> Proof:
        """Answer the example texts one by one, to compare with batches."""
        return BatchProof(self)

    def _failure(self, mode: Mode, proof: Proof) -> tuple[str | None, float]:
        """Return why a mode cannot be used, or None, and the largest difference seen."""
        reason = self._pack() if mode == "packed" else None
        if reason is not None:
            return reason, 0.0
        difference = 0.0
        try:
            difference = proof.difference(mode)
        except Exception as error:  # a batch may fail in any way that the architecture knows
            reason = f"a batch raised {first_line(error)}"
        if not difference <= proof.tolerance:
            reason = f"its answers differ from those one by one by {difference:.1e}, more than {proof.tolerance:.0e}"
        if reason is not None and self.encoder is not None:
            self.encoder.remove()
            self.encoder = None
        return reason, difference

    def _pack(self, *, proven: bool = True) -> str | None:
        """Switch packing on; return why that is impossible, or None."""
        if not self.engine.packs:
            return f"the engine {self.settings.engine} takes padded batches alone"
        if not hasattr(self.model, "base_model"):
            return "not a transformers model"
        encoder = PackedEncoder(self.model)
        # Two short ones, since each pass of a big model delays the first answer; but one exceeds a sliding window.
        window = getattr(self.model.config, "sliding_window", None) or 0
        try:
            reason = prove(encoder, self._random_batch([4, 2 * window + 7])) if proven else None
        except Exception as error:
            reason = f"the model raised {first_line(error)}"
        if reason is None:
            encoder.on = True
            self.encoder = encoder
        else:
            encoder.remove()
        return reason

    def engine_batch(self) -> Mapping[str, torch.Tensor]:
        """Token sequences of three lengths."""
        return self._random_batch([7, 3, 5])

    def _random_batch(self, lengths: Sequence[int]) -> dict[str, torch.Tensor]:
        """A micro-batch of token sequences of these lengths, without those over the model's limit."""
        rng, words = np.random.default_rng(0), self.model.config.vocab_size
        rows = [rng.integers(0, words, length) for length in lengths if length <= self.token_limit()]
        padding = self.tokenizer.pad_token_id or 0
        for row in rows:  # RoBERTa does not count positions of padding, not even inside a text
            row[row == padding] = (padding + 1) % words
        typed = self._has_types(self.takes_types)
        features = [Tokens(row, np.zeros_like(row) if typed else None) for row in rows]
        batch = TextHandler.collate(self, features)  # a task's own collate may add what is not for the model
        return {name: tensor.to(self.device) for name, tensor in batch.items()}

    def decode_item(self, value: Any) -> Any:
        """Check a text's length.

        Raises:
            PayloadTooLarge: more characters than ``tsbatch.limits.characters``.
        """
        limit = self.settings.limits.characters
        if len(value) > limit:
            raise PayloadTooLarge(f"the text has {len(value):,} characters, over the limit of {limit:,}")
        return value

    def encode(self, texts: Sequence[str], pairs: Sequence[str] | None = None, **options: Any) -> list[Tokens]:
        """Tokenize texts, or pairs of texts, in one call of the tokenizer.

        Args:
            texts: the texts, or the first of each pair.
            pairs: the second of each pair.
            options: of the tokenizer, as ``truncation``.

        Returns:
            One entry for each text or pair.
        """
        typed = self._has_types(self.takes_types or pairs is not None)
        encoded = self._call_tokenizer(texts, pairs, return_token_type_ids=typed, **options)
        ids = [np.asarray(row, dtype=np.int64) for row in encoded["input_ids"]]
        types = [np.asarray(row, dtype=np.int64) for row in encoded["token_type_ids"]] if typed else [None] * len(ids)
        return [Tokens(row, kind) for row, kind in zip(ids, types, strict=True)]

    def _call_tokenizer(self, texts: Sequence[str], pairs: Sequence[str] | None, **options: Any) -> Any:
        seconds = None if pairs is None else list(pairs)
        return self.tokenizer(list(texts), seconds, return_attention_mask=False, verbose=False, **options)

    def _has_types(self, wanted: bool) -> bool:
        return wanted and "token_type_ids" in self.tokenizer.model_input_names

    def fit(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: str | bool = True,
        max_length: int | None = None,
    ) -> tuple[list[Tokens | Unprocessable], list[int]]:
        """Tokenize texts, or pairs, and cut those that are too long.

        Args:
            texts: as for :meth:`encode`.
            pairs: as for :meth:`encode`.
            truncation: which text of a pair is cut: True: the longest first; ``only_first``; ``only_second``.
            max_length: tokens to cut at, special ones included; by default :meth:`token_limit`.

        Returns:
            For each its tokens, or an error if the text that must not be cut is too long by itself; and the number of
            tokens that each has uncut.
        """
        features: list[Tokens | Unprocessable] = list(self.encode(texts, pairs, truncation=False))
        counts = [len(tokens) for tokens in features if isinstance(tokens, Tokens)]
        limit = max_length or self.token_limit()
        long = [index for index, count in enumerate(counts) if count > limit]
        chosen = [texts[index] for index in long], pairs and [pairs[index] for index in long]
        for index, cut in zip(long, self._cut(*chosen, limit, truncation), strict=True):
            features[index] = cut
        return features, counts

    def _cut(
        self, texts: Sequence[str], pairs: Sequence[str] | None, limit: int, truncation: str | bool
    ) -> list[Tokens | Unprocessable]:
        """Cut all texts in one call; if it raises because one of them cannot be cut, half by half."""
        if not texts:
            return []
        unfit = Unprocessable(f"the text that is not cut has more tokens than the model takes, {limit}")
        try:
            cut = self.encode(texts, pairs, truncation=truncation, max_length=limit)
        except Exception as error:  # the tokenizers package has no class of its own for this
            if "too short" not in str(error):
                raise
            if len(texts) == 1:
                return [unfit]
            middle = len(texts) // 2
            halves = slice(middle), slice(middle, None)
            return [
                tokens for half in halves for tokens in self._cut(texts[half], pairs and pairs[half], limit, truncation)
            ]
        return [tokens if len(tokens) <= limit else unfit for tokens in cut]  # tokenizers in Python leave it uncut

    def token_limit(self) -> int:
        """The longest input of the model in tokens: the smaller limit of tokenizer and model config."""
        limits = [self.tokenizer.model_max_length]
        config = self.model.config
        positions = getattr(config, "max_position_embeddings", None)
        if isinstance(positions, int) and positions > 0:
            # RoBERTa and its relatives (CamemBERT, MPNet ...) count positions from padding_idx + 1; others do not.
            encoder = getattr(self.model, "base_model", self.model)  # a model with a head contains it
            table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
            padding = getattr(table, "padding_idx", None)
            limits.append(positions - (padding + 1 if isinstance(padding, int) else 0))
        return int(min(limit for limit in [*limits, UNLIMITED] if limit))

    def lengths(self, features: Sequence[Any]) -> Sequence[int]:
        """Tokens of each feature."""
        return [len(feature) for feature in features]

    def collate(self, features: Sequence[Tokens]) -> Any:
        """Token ids of shape (n, longest) padded on the right, with their attention mask, and token types."""
        return pad(
            features,
            padding=self.tokenizer.pad_token_id or 0,
            type_padding=getattr(self.tokenizer, "pad_token_type_id", 0),
        )


def length_error(
    count: int, limit: int, *, cut: bool, expected: str = f"a shorter text, or {TRUNCATE}"
) -> Unprocessable | None:
    """Check the length of a tokenized text.

    Args:
        count: its tokens.
        limit: the most that the model takes.
        cut: the request asks for long texts to be cut.
        expected: what to send instead of a text that is too long.

    Returns:
        The error for a text without a token, or one that is too long; else None.
    """
    if count == 0:
        return Unprocessable("the text has no token", expected="a text with at least one word")
    if count > limit and not cut:
        return Unprocessable(f"the text has {count} tokens, over the model's {limit}", expected=expected)
    return None


def _reason(mode: Mode, asked: str, failures: Sequence[str]) -> str:
    if asked == mode:
        return "set in model-config.yaml, and its answers are those one by one"
    return "; ".join(failures) or f"the {mode} run gave the same answers as one by one"
