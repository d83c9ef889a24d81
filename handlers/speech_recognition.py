"""Speech recognition for torch-model-archiver: ``--handler $(tsbatch handler-path speech-recognition)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.speech_recognition.
"""

from __future__ import annotations

from tsbatch.tasks.speech_recognition import SpeechRecognitionHandler


class SpeechRecognition(SpeechRecognitionHandler):
    """The handler that TorchServe starts."""
