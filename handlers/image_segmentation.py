"""Image segmentation for torch-model-archiver: ``--handler $(tsbatch handler-path image-segmentation)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.image_segmentation.
"""

from __future__ import annotations

from tsbatch.tasks.image_segmentation import ImageSegmentationHandler


class ImageSegmentation(ImageSegmentationHandler):
    """The handler that TorchServe starts."""
