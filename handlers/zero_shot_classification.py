"""Zero-shot classification for torch-model-archiver: ``--handler $(tsbatch handler-path zero-shot-classification)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.zero_shot_classification.
"""

from __future__ import annotations

from tsbatch.tasks.zero_shot_classification import ZeroShotClassificationHandler


class ZeroShotClassification(ZeroShotClassificationHandler):
    """The handler that TorchServe starts."""
