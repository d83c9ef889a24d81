"""What the handlers that tsbatch is measured against have in common: how they load, read and answer.

They are TorchServe handlers as people write them, with two things better than usual so that only the batching is
compared: their JSON comes from orjson, and ``handler: {threads: N}`` in model-config.yaml sets torch's threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import torch
from transformers import AutoModel, AutoTokenizer
from ts.torch_handler.base_handler import BaseHandler

LONGEST = 256
"""Tokens that all-MiniLM-L6-v2 is made for (sentence_bert_config.json)."""


class Competitor(BaseHandler):  # type: ignore[misc]  # ts has no types
    """Loads the encoder; a subclass says how texts become vectors."""

    def initialize(self, context: Any) -> None:
        """Load model and tokenizer from the archive's folder."""
        threads = ((context.model_yaml_config or {}).get("handler") or {}).get("threads")
        if threads:
            torch.set_num_threads(threads)
        folder = context.system_properties["model_dir"]
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        self.initialized = True

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """One JSON answer a request."""
        del context
        with torch.inference_mode():
            vectors = self.vectors([row["body"]["inputs"] for row in data])
        return [orjson.dumps({"embedding": row}, option=orjson.OPT_SERIALIZE_NUMPY) for row in vectors.numpy()]

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Vectors of length 1, one row a text."""
        raise NotImplementedError

    def embed(self, encoded: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Token ids (n, longest) and their attention mask through the model, mean of the states, length 1."""
        states = self.model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).last_hidden_state
        weights = encoded["attention_mask"].unsqueeze(-1).to(states.dtype)
        return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)
