"""The text front end: what every task on transformers text models shares.

Texts become arrays of token ids in one call of the tokenizer for the whole batch; a micro-batch is padded in
``collate`` and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from tsbatch.batching.choice import Choice
from tsbatch.errors import LoadError, PayloadTooLarge, SettingsError
from tsbatch.handler import BatchHandler
from tsbatch.models.engines import Engine, Source, export_engine, start_engine
from tsbatch.models.packing import PackedEncoder, prove
from tsbatch.settings import Dtype

UNLIMITED = 1_000_000
"""A tokenizer without a limit has a model_max_length of 1e30; over this it counts as none."""
EXAMPLES = (
    "A short one.",
    "A sentence of ordinary length, like the ones that people send all day. " * 2,
    "word " * 120,
)


class TextHandler(BatchHandler):
    """Base of the text tasks: tokenizer, token ids as features, padding in ``collate``."""

    wants: ClassVar[Literal["text", "bytes", "json"]] = "text"
    item_ndim: ClassVar[int | None] = 0
    deterministic: ClassVar[bool] = True
    takes_engines: ClassVar[bool] = True

    def load_tokenizer(self) -> Any:
        """The tokenizer of the model folder.

        Raises:
            LoadError: what transformers said, in one line, or that its files were not packed.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(
                self.model_dir, trust_remote_code=self.settings.trust_remote_code, local_files_only=True
            )
        except Exception as error:  # transformers raises many kinds
            raise LoadError(f"the tokenizer cannot be loaded from the archive: {_first_line(error)}") from error
        # transformers 5 makes up an empty vocabulary where the files are missing, and every word is then unknown.
        files = sorted(set(tokenizer.vocab_files_names.values()))
        if files and not any((self.model_dir / file).is_file() for file in files):
            raise LoadError(f"the tokenizer cannot be loaded: the archive has none of {', '.join(files)}")
        return tokenizer

    def load_pretrained(self, auto_class: Any) -> Any:
        """The model of the folder through one of transformers' Auto classes, memory-mapped where safetensors allow.

        Raises:
            LoadError: what transformers said, in one line.
        """
        from transformers.utils import logging as transformers_logging

        if not (self.model_dir / "config.json").is_file():
            raise LoadError("config.json: no such file in the archive; pack a folder saved by save_pretrained")
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # a worker's stderr is a log
        try:
            model = auto_class.from_pretrained(
                self.model_dir, trust_remote_code=self.settings.trust_remote_code, local_files_only=True
            )
        except Exception as error:  # transformers raises many kinds
            raise LoadError(f"the model cannot be loaded from the archive: {_first_line(error)}") from error
        return model.to(self.device)

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
        reason = prove(encoder, self._made_up([4, 2 * window + 7]))
        if reason is None:
            encoder.on = True
        else:
            encoder.remove()
        return reason

    def start_engine(self) -> None:
        """The engine in place of ``self.model.forward``.

        Raises:
            LoadError: it said no, in one line.
        """
        start_engine(self.engine, self._engine_source(self.model_dir, self.settings.dtype))

    def export_engine(self, engine: Engine, folder: Path, dtype: Dtype) -> None:
        """Have ``engine`` write what it needs in an archive into the empty ``folder``.

        Not on a packed handler: exporters cannot follow what packing does in Python.

        Raises:
            LoadError: it said no, in one line.
        """
        export_engine(engine, self._engine_source(folder, dtype))

    def _engine_source(self, folder: Path, dtype: Dtype) -> Source:
        return Source(self.model, self._made_up([7, 3, 5]), folder, dtype)

    def _made_up(self, wanted: Sequence[int]) -> dict[str, torch.Tensor]:
        """A micro-batch of token sequences of these lengths, but none over the model's limit."""
        lengths = [length for length in wanted if length <= self.token_limit()]
        numbers, words = np.random.default_rng(0), self.model.config.vocab_size
        features = [numbers.integers(0, words, length) for length in lengths]
        for feature in features:  # RoBERTa does not count positions of padding, not even inside a text
            feature[feature == self.tokenizer.pad_token_id] = (self.tokenizer.pad_token_id + 1) % words
        return {name: tensor.to(self.device) for name, tensor in self.collate(features).items()}

    def decode_item(self, value: Any) -> Any:
        """A text within the limit.

        Raises:
            PayloadTooLarge: more characters than ``tsbatch.limits.characters``.
        """
        limit = self.settings.limits.characters
        if len(value) > limit:
            raise PayloadTooLarge(f"the text has {len(value):,} characters, over the limit of {limit:,}")
        return value

    def tokenize(self, texts: Sequence[str], max_length: int) -> tuple[list[np.ndarray[Any, Any]], list[int]]:
        """Token ids of each text, cut at ``max_length``, and how many tokens each would have had uncut."""
        ids = self._ids(texts)
        counts = [len(row) for row in ids]
        long = [place for place, count in enumerate(counts) if count > max_length]
        if long:
            cut = self._ids([texts[place] for place in long], truncation=True, max_length=max_length)
            for place, row in zip(long, cut, strict=True):
                ids[place] = row
        return [np.asarray(row, dtype=np.int64) for row in ids], counts

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
            table = getattr(getattr(self.model, "embeddings", None), "position_embeddings", None)
            padding = getattr(table, "padding_idx", None)
            limits.append(positions - (padding + 1 if isinstance(padding, int) else 0))
        return int(min(limit for limit in [*limits, UNLIMITED] if limit))

    def lengths(self, features: Sequence[Any]) -> Sequence[int]:
        """Tokens of each feature."""
        return [len(feature) for feature in features]

    def collate(self, features: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Token ids of shape (n, longest) padded on the right, with their attention mask."""
        counts = np.fromiter((len(feature) for feature in features), dtype=np.int64, count=len(features))
        ids = np.full((len(features), int(counts.max())), self.tokenizer.pad_token_id or 0, dtype=np.int64)
        for row, feature in zip(ids, features, strict=True):
            row[: len(feature)] = feature
        mask = np.arange(ids.shape[1]) < counts[:, None]
        return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}


def read_json(path: Path) -> Mapping[str, Any] | list[Any] | None:
    """A JSON file of the model folder, or None when it is not there.

    Raises:
        LoadError: it is there and broken.
    """
    if not path.is_file():
        return None
    try:
        loaded: Mapping[str, Any] | list[Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LoadError(f"{path.name}: broken JSON: {error}") from None
    return loaded


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"
