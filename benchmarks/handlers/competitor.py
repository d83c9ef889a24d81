"""Shared base of the handlers that tsbatch is compared with: loading, reading requests and answering.

They are typical TorchServe handlers with two improvements, so that only the batching differs: orjson writes their JSON,
and ``handler: {threads: N}`` in model-config.yaml sets torch's threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import torch
from transformers import AutoModel, AutoTokenizer
from ts.torch_handler.base_handler import BaseHandler

LONGEST = 256
"""Maximum number of tokens for all-MiniLM-L6-v2 (sentence_bert_config.json)."""


class Competitor(BaseHandler):  # type: ignore[misc]  # ts has no types
    """Loads the encoder; a subclass turns texts into vectors."""

    def initialize(self, context: Any) -> None:
        """Load the model and the tokenizer from the archive's folder."""
        threads = ((context.model_yaml_config or {}).get("handler") or {}).get("threads")
        if threads:
            torch.set_num_threads(threads)
        folder = context.system_properties["model_dir"]
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        self.initialized = True

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[bytes]:
        """Return one JSON answer per request."""
        del context
        with torch.inference_mode():
            vectors = self.vectors([row["body"]["inputs"] for row in data])
        return [orjson.dumps({"embedding": row}, option=orjson.OPT_SERIALIZE_NUMPY) for row in vectors.numpy()]

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Compute vectors of length 1, one row per text."""
        raise NotImplementedError

    def embed(self, encoded: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run token ids (n, longest) and their attention mask through the model; return mean states of length 1."""
        states = self.model(input_ids=encoded["input_ids"], attention_mask=encoded["attention_mask"]).last_hidden_state
        weights = encoded["attention_mask"].unsqueeze(-1).to(states.dtype)
        return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)
