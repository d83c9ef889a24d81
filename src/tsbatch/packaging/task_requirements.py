"""What each ready-made task needs from a model folder, so that the packer can say what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

EXTRAS: Final = {"image": ("Pillow",), "audio": ("soundfile", "soxr")}
"""Distributions of each extra, as in pyproject.toml."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model folder must have.

    Attributes:
        transformers: it must be a transformers folder (config.json and weights); otherwise it may be any model file.
        tokenizer: one of the tokenizer's files.
        processor: ``preprocessor_config.json`` (or, of transformers 5, ``processor_config.json``).
        extra: the extra of tsbatch with what else the worker imports.
    """

    transformers: bool = True
    tokenizer: bool = False
    processor: bool = False
    extra: str | None = None

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions of :attr:`extra`."""
        return EXTRAS[self.extra] if self.extra else ()


_TEXT: Final = Needs(tokenizer=True)
_IMAGE: Final = Needs(processor=True, extra="image")
_AUDIO: Final = Needs(processor=True, extra="audio")

TASKS: Final[Mapping[str, Needs]] = {
    "text-embedding": _TEXT,
    "text-classification": _TEXT,
    "token-classification": _TEXT,
    "question-answering": _TEXT,
    "fill-mask": _TEXT,
    "zero-shot-classification": _TEXT,
    "reranking": _TEXT,
    "summarization": _TEXT,
    "translation": _TEXT,
    "text-generation": _TEXT,
    "image-classification": Needs(transformers=False, extra="image"),
    "image-embedding": _IMAGE,
    "object-detection": _IMAGE,
    "image-segmentation": _IMAGE,
    "speech-recognition": _AUDIO,
    "audio-classification": _AUDIO,
    "tensor": Needs(transformers=False),
}
"""The ready-made tasks. Image classification takes a transformers folder or a PyTorch model with a preprocessing
file, so its handler checks at load."""


def needs(task: str | None) -> Needs:
    """What ``task`` needs; nothing for an own handler or a task that another package brings."""
    return TASKS.get(task or "", Needs(transformers=False))
