"""text-embedding: one vector a text, from any transformers encoder folder.

Input: a text, or a list of texts. Parameters: ``dimensions``, ``normalize``, ``prompt_name``, ``prompt``,
``truncate``. Output for each text::

    {"embedding": [0.01, …]}
    {"embedding": [0.01, …], "truncated": {"tokens": 812, "kept": 256}}     when it was too long

Pooling, dense layers, normalisation, prompts and the longest input come from the sentence-transformers files
when the folder has them; otherwise the mean of the token states, normalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.shared.pretrained_folder import read_config
from tsbatch.tasks.text.handler import TextHandler
from tsbatch.tasks.text.pooling import POOLINGS, Head, read_head
from tsbatch.worker.resources import to_device

ENCODERS_OF = ("mt5", "t5", "umt5")
"""Encoder-decoders of which the encoder alone embeds."""


class EmbeddingOptions(Section):
    """The section ``handler:`` of model-config.yaml; each key overrides what the model folder says."""

    pooling: Literal["cls", "last", "max", "mean", "mean_sqrt_len", "weighted_mean"] | None = None
    normalize: bool | None = None
    max_length: int | None = Field(default=None, ge=2, description="tokens, special ones included")


class EmbeddingParameters(Section):
    """What a request may ask for.

    Attributes:
        dimensions: keep the first so many numbers; for models trained that way (Matryoshka).
        normalize: scale to length 1, after cutting; the model's own way when left out.
        prompt_name: one of the model's prompts, put before the text.
        prompt: a prefix of the client's own.
        truncate: false to get a 422 for a text that is too long, instead of the vector of its beginning.
    """

    dimensions: int | None = Field(default=None, ge=1)
    normalize: bool | None = None
    prompt_name: str | None = None
    prompt: str | None = Field(default=None, max_length=10_000)
    truncate: bool = True


class TextEmbeddingHandler(TextHandler):
    """Embeds texts. See the module for input, output and parameters."""

    task: ClassVar[str] = "text-embedding"
    input_schema: ClassVar[Any] = {"type": "string"}
    output_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["embedding"],
        "properties": {
            "embedding": {"type": "array", "items": {"type": "number"}},
            "truncated": {
                "type": "object",
                "properties": {"tokens": {"type": "integer"}, "kept": {"type": "integer"}},
            },
        },
    }
    parameters_class: ClassVar[Any] = EmbeddingParameters
    settings_class: ClassVar[Any] = EmbeddingOptions
    head: Head
    max_length: int

    def load_model(self) -> Any:
        """The encoder; of an encoder-decoder (T5) its first half, as sentence-transformers has it."""
        from transformers import AutoModel, AutoModelForTextEncoding

        halved = read_config(self.model_dir).get("model_type") in ENCODERS_OF
        return self.load_pretrained(AutoModelForTextEncoding if halved else AutoModel)

    def prepare(self) -> None:
        """Read the head, and fix the longest input."""
        head = read_head(self.model_dir, self.device)
        options: EmbeddingOptions = self.options
        if options.pooling:
            head = replace(head, poolings=(options.pooling,))
        if options.normalize is not None:
            head = replace(head, normalize=options.normalize)
        self.head = head
        most = self.token_limit()
        if options.max_length and options.max_length > most:
            raise SettingsError(
                f"model-config.yaml: handler.max_length: {options.max_length} is over what the model takes, {most}"
            )
        self.max_length = options.max_length or min(head.max_length or most, most)
        self._prefixes = dict(head.prompts)

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request, with prompts that this model has."""
        items = super().decode_request(request)
        for item in items:
            self._prefix(item.parameters)
        return items

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Texts to token ids: one array an item, or its error, since a search would cost all the tokens again."""
        texts = [self._prefix(item.parameters) + item.value for item in items]
        if self.head.lower:
            texts = [text.lower() for text in texts]
        tokens, counts = self.tokenize(texts, self.max_length)
        features: list[Any] = list(tokens)
        for place, (item, count) in enumerate(zip(items, counts, strict=True)):
            if count == 0:
                features[place] = Unprocessable("the text has no token", expected="a text with at least one word")
            elif count > self.max_length and not item.parameters.truncate:
                features[place] = Unprocessable(
                    f"the text has {count} tokens, over the model's {self.max_length}",
                    expected='a shorter text, or {"parameters": {"truncate": true}}',
                )
            elif count > self.max_length:
                item.state = {"tokens": count, "kept": self.max_length}
        return features

    def inference(self, tensors: Any) -> torch.Tensor:
        """Token ids (n, longest) to vectors (n, dimensions), not yet normalised."""
        moved = to_device(tensors, self.device)
        states = self.model(**moved).last_hidden_state.float()  # sums over tokens lose too much in half precision
        return self.head(states, moved["attention_mask"])

    def postprocess(self, outputs: torch.Tensor, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Vectors (n, dimensions) to answers: cut, then normalised, as each request asked."""
        raw = outputs.numpy()
        usual = _unit(raw) if self.head.normalize else raw
        results: list[dict[str, Any]] = []
        for place, item in enumerate(items):
            wish: EmbeddingParameters = item.parameters
            special = wish.dimensions is not None or wish.normalize is not None
            result: dict[str, Any] = {"embedding": self._as_wished(raw[place], wish) if special else usual[place]}
            if item.state:
                result["truncated"] = item.state
            results.append(result)
        return results

    def describe_handle(self) -> dict[str, Any]:
        """What the task takes and gives, and how this model is set."""
        return {
            **super().describe_handle(),
            "max_length": self.max_length,
            "pooling": list(self.head.poolings),
            "normalize": self.head.normalize,
            "prompts": sorted(self._prefixes),
            "poolings_known": sorted(POOLINGS),
        }

    def _prefix(self, wish: EmbeddingParameters) -> str:
        if wish.prompt is not None:
            return wish.prompt
        name = wish.prompt_name or self.head.default_prompt
        if name is None:
            return ""
        if name not in self._prefixes:
            known = ", ".join(sorted(self._prefixes)) or "none; this model has no prompts"
            raise Unprocessable(f"parameters.prompt_name: {name!r} does not exist", expected=f"one of: {known}")
        return self._prefixes[name]

    def _as_wished(self, vector: np.ndarray[Any, Any], wish: EmbeddingParameters) -> np.ndarray[Any, Any]:
        if wish.dimensions is not None:
            if wish.dimensions > len(vector):
                raise Unprocessable(f"parameters.dimensions: {wish.dimensions} is over the model's {len(vector)}")
            vector = vector[: wish.dimensions]
        return _unit(vector) if (self.head.normalize if wish.normalize is None else wish.normalize) else vector


def _unit(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: np.ndarray[Any, Any] = vectors / np.maximum(lengths, 1e-12)
    return unit
