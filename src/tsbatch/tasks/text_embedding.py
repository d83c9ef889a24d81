"""text-embedding: one vector per text, from any transformers encoder folder.

Input: a text, or a list of texts. Parameters: ``dimensions``, ``normalize``, ``prompt_name``, ``prompt``,
``truncate``. Output for each text::

    {"embedding": [0.01, …]}
    {"embedding": [0.01, …], "truncated": {"tokens": 812, "kept": 256}}     when it was too long

Pooling, dense layers, normalisation, prompts and the longest input come from the folder's sentence-transformers files;
without them the vector is the mean of the token states, normalised. Models saved with a projection or a pooled output
of their own (DPR, CLIPTextModelWithProjection) give that. Chains of modules that tsbatch does not compute itself are
left to the library (``tasks/text/sentence_library.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.batching.strategy import Choice
from tsbatch.errors import LoadError, SettingsError, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.shared.pretrained_folder import VECTOR_OUTPUTS, read_config, vector_class
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, array_of, object_of
from tsbatch.tasks.text.handler import UNLIMITED, TextHandler, length_error
from tsbatch.tasks.text.pooling import POOLINGS, Head, read_head, read_options
from tsbatch.tasks.text.sentence_library import Prompted, encode_whole, load_whole, read_modules, whole_because
from tsbatch.tasks.text.token_features import lower_case
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
    whole: str | None = None
    """Why the library runs the model as a whole; None if it does not."""
    output: str | None = None
    """The model's output that is the vector of a text; None if its token states are pooled."""

    def load_model(self) -> Any:
        """Load the encoder, of an encoder-decoder (T5) its first half; or the library's whole model.

        Raises:
            LoadError: the folder lacks weights, or cannot be loaded.
        """
        from transformers import AutoModel, AutoModelForTextEncoding

        self.whole = whole_because(self.model_dir)
        if self.whole is not None:
            return load_whole(self.model_dir, self.whole, self.device)
        config = read_config(self.model_dir)
        plain = AutoModelForTextEncoding if config.get("model_type") in ENCODERS_OF else AutoModel
        pooled = (self.model_dir / "modules.json").is_file()
        model = self.load_pretrained(plain if pooled else vector_class(config) or plain)
        self.check_encoder(model)
        self.output = VECTOR_OUTPUTS.get(type(model).__name__)
        return model

    def load_tokenizer(self) -> Any:
        """Load the tokenizer; None if the library tokenizes the texts."""
        return None if self.whole else super().load_tokenizer()

    def choose_batching(self) -> Choice:
        """As for every text task, unless the library runs the model."""
        if self.whole:
            return Choice("padded", f"sentence-transformers runs the model one text at a time: {self.whole}")
        return super().choose_batching()

    def start_engine(self) -> None:
        """Start the engine, unless the library runs the model.

        Raises:
            LoadError: only plain PyTorch can run this model.
        """
        if not self.whole:
            super().start_engine()
        elif self.settings.engine != "eager" or self.settings.dtype not in ("auto", "float32"):
            asked = f"engine: {self.settings.engine}, dtype: {self.settings.dtype}"
            raise LoadError(f"{asked}: sentence-transformers runs this model itself, in float32 ({self.whole})")

    def prepare(self) -> None:
        """Read the head, and determine the longest input.

        Raises:
            SettingsError: an option does not fit this model.
        """
        options: EmbeddingOptions = self.options
        head = self._read_head()
        if options.pooling:
            if not head.poolings:
                raise SettingsError("model-config.yaml: handler.pooling: this model cannot be pooled otherwise")
            head = replace(head, poolings=(options.pooling,))
        if options.normalize is not None:
            head = replace(head, normalize=options.normalize)
        self.head = head
        self._prefixes = dict(head.prompts)
        if self.whole:
            if options.max_length:
                raise SettingsError("model-config.yaml: handler.max_length: sentence-transformers cuts the texts here")
            limit = getattr(self.model, "max_seq_length", None)  # infinite for a model without positions
            self.max_length = int(limit) if limit and limit < UNLIMITED else UNLIMITED
            return
        if head.max_length:
            self.tokenizer.model_max_length = head.max_length  # takes precedence, as in the library
        limit = self.token_limit()
        if options.max_length and options.max_length > limit:
            raise SettingsError(
                f"model-config.yaml: handler.max_length: {options.max_length} is over the model's limit of {limit}"
            )
        self.max_length = options.max_length or limit
        if head.lower:
            lower_case(self.tokenizer)

    def _read_head(self) -> Head:
        if self.output:
            return Head(poolings=(), normalize=False)
        if not self.whole:
            return read_head(self.model_dir, self.device)
        kinds = [kind for kind, _ in read_modules(self.model_dir)]
        return Head(poolings=(), normalize=len(kinds) > 1 and kinds[-1] == "Normalize", **read_options(self.model_dir))

    def check_item(self, item: Item) -> None:
        """Check that the model has the prompt that the item asks for."""
        self._prefix(item.parameters)

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Tokenize the texts: for each item its tokens, or its error."""
        if self.whole:
            return [self._prompted(item) for item in items]
        texts = [self._prefix(item.parameters) + item.value for item in items]
        tokens, counts = self.fit(texts, max_length=self.max_length)
        for item, count in zip(items, counts, strict=True):
            item.state = {"tokens": count, "kept": self.max_length} if count > self.max_length else None
        return [
            length_error(count, self.max_length, cut=item.parameters.truncate) or own
            for own, count, item in zip(tokens, counts, items, strict=True)
        ]

    def collate(self, features: Sequence[Any]) -> Any:
        """Token ids of shape (n, longest) with their mask; the texts themselves if the library runs the model."""
        return list(features) if self.whole else super().collate(features)

    def inference(self, tensors: Any) -> torch.Tensor:
        """Vectors (n, dimensions), not yet normalised, of token ids (n, longest)."""
        if self.whole:
            return encode_whole(self.model, tensors)
        moved = to_device(tensors, self.device)
        found = self.model(**moved)
        if self.output:
            vectors: torch.Tensor = getattr(found, self.output)
            return vectors.float()
        states = found.last_hidden_state.float()  # sums over tokens are too inaccurate in half precision
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

    def _prompted(self, item: Item) -> Prompted | Unprocessable:
        if not item.parameters.truncate:
            return Unprocessable("parameters.truncate: false is not supported: sentence-transformers cuts the texts")
        return Prompted(self._prefix(item.parameters), item.value)

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
