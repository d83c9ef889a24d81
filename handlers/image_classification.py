"""Image classification for torch-model-archiver: ``--handler $(tsbatch handler-path image-classification)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.image_classification.
"""

from __future__ import annotations

from tsbatch.tasks.image_classification import ImageClassificationHandler


class ImageClassification(ImageClassificationHandler):
    """The handler that TorchServe starts."""
