"""The module of a state dict in the form that torch-model-archiver's --model-file requires: one class, no arguments."""

from __future__ import annotations

from pathlib import Path

from transformers import BertConfig, BertModel


class Encoder(BertModel):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """BERT with the sizes in config.json next to this file."""

    def __init__(self) -> None:
        super().__init__(BertConfig.from_pretrained(Path(__file__).parent))
