"""audio-classification: the classes of a sound, with a transformers folder of an audio classifier.

Input: a sound file (WAV, FLAC, OGG, MP3), or a list of them. Parameters: ``top_k``, ``function_to_apply``. Output for
each sound, best first, as in transformers' pipeline::

    [{"label": "dog", "score": 0.93}, {"label": "cat", "score": 0.04}, …]

Limits: ``handler.max_seconds`` of sound in an item, by default 60; ``handler.max_request_seconds`` in a request, 1800.
The model takes each item as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from tsbatch.protocol.request import Item
from tsbatch.tasks.audio.handler import AudioHandler, Window
from tsbatch.tasks.shared.classification import LABELS_SCHEMA, Classifier, ClassifyingParameters, default_function


class AudioClassificationParameters(ClassifyingParameters):
    """Parameters of a request.

    Attributes:
        top_k: the number of labels, best first; null for all.
    """

    top_k: int | None = Field(default=5, ge=1, description="labels, best first; null: all")


class AudioClassificationHandler(Classifier, AudioHandler):
    """Classifies sounds. See the module for input, output and parameters."""

    task: ClassVar[str] = "audio-classification"
    output_schema: ClassVar[Any] = LABELS_SCHEMA
    parameters_class: ClassVar[Any] = AudioClassificationParameters
    auto_class: ClassVar[str] = "AutoModelForAudioClassification"

    def prepare(self) -> None:
        """Load the feature extractor, and read the names of the classes."""
        super().prepare()
        self.names = self.read_class_names()
        self.default_function = default_function(self.model.config, len(self.names), single="softmax")

    def preprocess(self, items: Sequence[Item]) -> list[Window]:
        """Make one window per item, of the whole sound."""
        return self.windows([item.value for item in items])

    def logits(self, batch: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The logits of each row, shape (classes,)."""
        return list(self.model(**batch).logits)
