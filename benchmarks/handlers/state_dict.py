"""The stock way to load a model: TorchServe's BaseHandler loads a state dict from a .pt file into the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import torch
from transformers import AutoTokenizer
from ts.torch_handler.base_handler import BaseHandler


class StateDict(BaseHandler):  # type: ignore[misc]  # ts has no types
    """Embeds texts one by one with the module of ``encoder.py``; only the loading matters here."""

    def initialize(self, context: Any) -> None:
        """Load the module with BaseHandler, and the tokenizer."""
        super().initialize(context)
        self.tokenizer = AutoTokenizer.from_pretrained(context.system_properties["model_dir"], local_files_only=True)
        self.initialized = True

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """Return one JSON answer per request."""
        del context
        with torch.inference_mode():
            return [orjson.dumps({"embedding": self._vector(row["body"]["inputs"])}) for row in data]

    def _vector(self, text: str) -> list[float]:
        states = self.model(**self.tokenizer(text, truncation=True, return_tensors="pt")).last_hidden_state
        vector: list[float] = torch.nn.functional.normalize(states.mean(1), dim=1)[0].tolist()
        return vector
