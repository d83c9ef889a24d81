"""The module that a state dict belongs to, as torch-model-archiver's --model-file wants it: one class, no arguments."""

from __future__ import annotations

from pathlib import Path

from transformers import BertConfig, BertModel


class Encoder(BertModel):  # type: ignore[no-untyped-call]  # its __init_subclass__
    """BERT of the sizes in config.json beside this file."""

    def __init__(self) -> None:
        super().__init__(BertConfig.from_pretrained(Path(__file__).parent))
