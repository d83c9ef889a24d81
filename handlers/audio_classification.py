"""Audio classification for torch-model-archiver: ``--handler $(tsbatch handler-path audio-classification)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.audio_classification.
"""

from __future__ import annotations

from tsbatch.tasks.audio_classification import AudioClassificationHandler


class AudioClassification(AudioClassificationHandler):
    """The handler that TorchServe starts."""
