"""text-embedding: one vector per text, from any transformers encoder folder.

Input: a text, or a list of texts. Parameters: ``dimensions``, ``normalize``, ``prompt_name``, ``prompt``,
``truncate``. Output for each text::

    {"embedding": [0.01, …]}
    {"embedding": [0.01, …], "truncated": {"tokens": 812, "kept": 256}}     when it was too long

Pooling, dense layers, normalisation, prompts and the longest input come from the folder's sentence-transformers files;
without them the vector is the mean of the token states, normalised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.shared.pretrained_folder import read_config
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, array_of, object_of
from tsbatch.tasks.text.handler import TextHandler, length_error
from tsbatch.tasks.text.pooling import POOLINGS, Head, read_head
from tsbatch.worker.resources import to_device

ENCODERS_OF = ("mt5", "t5", "umt5")
"""Encoder-decoders; only their encoder is used."""


class EmbeddingOptions(Section):
    """The section ``handler:`` of model-config.yaml; each key overrides the model folder's own setting."""

    pooling: Literal["cls", "last", "max", "mean", "mean_sqrt_len", "weighted_mean"] | None = None
    normalize: bool | None = None
    max_length: int | None = Field(default=None, ge=2, description="tokens, special ones included")


class EmbeddingParameters(Section):
    """Parameters of a request.

    Attributes:
        dimensions: keep this many numbers from the beginning; for models trained that way (Matryoshka).
        normalize: scale to length 1, after cutting; by default as the model does.
        prompt_name: one of the model's prompts, put before the text.
        prompt: the client's own prefix.
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
    output_schema: ClassVar[Any] = object_of(
        {"embedding": array_of(NUMBER)}, {"truncated": object_of({}, {"tokens": INTEGER, "kept": INTEGER})}
    )
    parameters_class: ClassVar[Any] = EmbeddingParameters
    settings_class: ClassVar[Any] = EmbeddingOptions
    head: Head
    max_length: int

    def load_model(self) -> Any:
        """Load the encoder; of an encoder-decoder (T5) its first half, as sentence-transformers does."""
        from transformers import AutoModel, AutoModelForTextEncoding

        encoder_only = read_config(self.model_dir).get("model_type") in ENCODERS_OF
        model = self.load_pretrained(AutoModelForTextEncoding if encoder_only else AutoModel)
        self.check_encoder(model)
        return model

    def prepare(self) -> None:
        """Read the head, and determine the longest input."""
        head = read_head(self.model_dir, self.device)
        options: EmbeddingOptions = self.options
        if options.pooling:
            head = replace(head, poolings=(options.pooling,))
        if options.normalize is not None:
            head = replace(head, normalize=options.normalize)
        self.head = head
        limit = self.token_limit()
        if options.max_length and options.max_length > limit:
            raise SettingsError(
                f"model-config.yaml: handler.max_length: {options.max_length} is over the model's limit of {limit}"
            )
        self.max_length = options.max_length or min(head.max_length or limit, limit)
        self._prefixes = dict(head.prompts)

    def check_item(self, item: Item) -> None:
        """Check that the model has the prompt that the item asks for."""
        self._prefix(item.parameters)

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Tokenize the texts: for each item its tokens, or its error."""
        texts = [self._prefix(item.parameters) + item.value for item in items]
        if self.head.lower:
            texts = [text.lower() for text in texts]
        tokens, counts = self.fit(texts, max_length=self.max_length)
        for item, count in zip(items, counts, strict=True):
            item.state = {"tokens": count, "kept": self.max_length} if count > self.max_length else None
        return [
            length_error(count, self.max_length, cut=item.parameters.truncate) or own
            for own, count, item in zip(tokens, counts, items, strict=True)
        ]

    def inference(self, tensors: Any) -> torch.Tensor:
        """Vectors (n, dimensions), not yet normalised, of token ids (n, longest)."""
        moved = to_device(tensors, self.device)
        states = self.model(**moved).last_hidden_state.float()  # sums over tokens are too inaccurate in half precision
        return self.head(states, moved["attention_mask"])

    def postprocess(self, outputs: torch.Tensor, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Cut and then normalise the vectors (n, dimensions) as each request asks."""
        raw = outputs.numpy()
        default = (_unit(raw) if self.head.normalize else raw)[:, : self.head.dimensions]
        results: list[dict[str, Any]] = []
        for index, item in enumerate(items):
            asked: EmbeddingParameters = item.parameters
            special = asked.dimensions is not None or asked.normalize is not None
            result: dict[str, Any] = {"embedding": self._adapt(raw[index], asked) if special else default[index]}
            if item.state:
                result["truncated"] = item.state
            results.append(result)
        return results

    def describe_handle(self) -> dict[str, Any]:
        """Describe the task's input and output, and this model's settings."""
        return {
            **super().describe_handle(),
            "max_length": self.max_length,
            "pooling": list(self.head.poolings),
            "normalize": self.head.normalize,
            "prompts": sorted(self._prefixes),
            "poolings_known": sorted(POOLINGS),
        }

    def _prefix(self, parameters: EmbeddingParameters) -> str:
        if parameters.prompt is not None:
            return parameters.prompt
        name = parameters.prompt_name or self.head.default_prompt
        if name is None:
            return ""
        if name not in self._prefixes:
            known = ", ".join(sorted(self._prefixes)) or "none; this model has no prompts"
            raise Unprocessable(f"parameters.prompt_name: {name!r} does not exist", expected=f"one of: {known}")
        return self._prefixes[name]

    def _adapt(self, vector: np.ndarray[Any, Any], asked: EmbeddingParameters) -> np.ndarray[Any, Any]:
        if asked.dimensions is not None:
            if asked.dimensions > len(vector):
                raise Unprocessable(f"parameters.dimensions: {asked.dimensions} is over the model's {len(vector)}")
            vector = vector[: asked.dimensions]
        return _unit(vector) if (self.head.normalize if asked.normalize is None else asked.normalize) else vector


def _unit(vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: np.ndarray[Any, Any] = vectors / np.maximum(lengths, 1e-12)
    return unit
