"""audio-classification: the classes of a sound, from a transformers folder of an audio classifier.

Input: a sound file (WAV, FLAC, OGG, MP3), or a list of them. Parameters: ``top_k``, ``function_to_apply``. Output for
each sound, best first, as transformers' pipeline::

    [{"label": "dog", "score": 0.93}, {"label": "cat", "score": 0.04}, …]

Limits: ``handler.max_seconds`` of sound in an item, 60 unless set; ``handler.max_request_seconds`` in a request, 1800.
The model hears all of an item at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from tsbatch.protocol.request import Item
from tsbatch.tasks.audio.handler import AudioHandler, Window, Wish
from tsbatch.tasks.shared.class_names import class_names
from tsbatch.tasks.shared.classification import LABELS_SCHEMA, ClassifyingParameters, classify, usual_function


class AudioClassificationParameters(ClassifyingParameters):
    """What a request may ask for.

    Attributes:
        top_k: so many classes, best first; null for all.
    """

    top_k: int | None = Field(default=5, ge=1, description="labels, best first; null: all")


class AudioClassificationHandler(AudioHandler):
    """Classifies sounds. See the module for input, output and parameters."""

    task: ClassVar[str] = "audio-classification"
    output_schema: ClassVar[Any] = LABELS_SCHEMA
    parameters_class: ClassVar[Any] = AudioClassificationParameters
    names: list[str]

    def load_model(self) -> Any:
        """The classifier."""
        from transformers import AutoModelForAudioClassification

        return self.load_pretrained(AutoModelForAudioClassification, complete=True)

    def prepare(self) -> None:
        """Load the feature extractor and the names of the classes."""
        super().prepare()
        config = self.model.config
        self.names = class_names(config.num_labels, folder=self.model_dir, aux=self.aux, config=config)
        self.usual = usual_function(config, len(self.names), single="softmax")

    def labels(self) -> list[str]:
        """The names of the classes."""
        return self.names

    def preprocess(self, items: Sequence[Item]) -> list[Window]:
        """One window an item: the whole sound."""
        return self.windows([item.value for item in items])

    def outputs(self, batch: Mapping[str, torch.Tensor], wish: Wish) -> list[torch.Tensor]:
        """The logits of each row, shape (classes,)."""
        del wish
        return list(self.model(**batch).logits)

    def proof(self, batch: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """The same logits."""
        return self.outputs(batch, ())

    def postprocess(self, outputs: torch.Tensor, items: Sequence[Item]) -> list[Any]:
        """Logits (n, classes) to labels, as each request asked."""
        return classify(outputs, [item.parameters for item in items], self.names, self.usual)
