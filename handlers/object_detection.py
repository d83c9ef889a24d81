"""Object detection for torch-model-archiver: ``--handler $(tsbatch handler-path object-detection)``.

TorchServe imports this file by its name and requires exactly one class in it; the code is in
tsbatch.tasks.object_detection.
"""

from __future__ import annotations

from tsbatch.tasks.object_detection import ObjectDetectionHandler


class ObjectDetection(ObjectDetectionHandler):
    """The handler that TorchServe starts."""
