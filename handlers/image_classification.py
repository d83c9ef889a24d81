"""Image classification for torch-model-archiver: ``--handler $(tsbatch handler-path image-classification)``.

TorchServe imports this file by its bare name and wants exactly one class defined in it; the code is in
tsbatch.tasks.image_classification.
"""

from __future__ import annotations

from tsbatch.tasks.image_classification import ImageClassificationHandler


class ImageClassification(ImageClassificationHandler):
    """The handler TorchServe starts."""
