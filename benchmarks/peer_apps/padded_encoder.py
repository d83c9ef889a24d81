"""The model that all peers serve: all-MiniLM-L6-v2 as in the transformers tutorials, padded to the longest text.

Runs in the peer's own environment, so it does not use tsbatch. Environment variables hold the settings.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from transformers import AutoModel, AutoTokenizer

FOLDER = os.environ["PEER_MODEL"]
PORT = int(os.environ["PEER_PORT"])
WORKERS = int(os.environ["PEER_WORKERS"])
THREADS = int(os.environ["PEER_THREADS"])
BATCH = int(os.environ["PEER_BATCH"])
DELAY_SECONDS = int(os.environ["PEER_DELAY"]) / 1000
LONGEST = 256


class PaddedEncoder:
    """The model and tokenizer of one worker."""

    def __init__(self) -> None:
        torch.set_num_threads(THREADS)
        self.tokenizer = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
        self.model = AutoModel.from_pretrained(FOLDER, local_files_only=True).eval()

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """Compute one vector of length 1 per text: the mean of its token states."""
        encoded = self.tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        states = self.model(**encoded).last_hidden_state
        weights = encoded["attention_mask"].unsqueeze(-1).to(states.dtype)
        pooled = torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)
        vectors: list[list[float]] = pooled.tolist()
        return vectors
