"""object-detection: what is where in an image, with a transformers folder (DETR, YOLOS, RT-DETR …).

Input: an image, or a list of them: a raw body, a form's field, base64 or a ``data:`` URL. Parameter: ``threshold``.
Output for each image, as in transformers' pipeline, with boxes in pixels of the upright original::

    [{"score": 0.98, "label": "cat", "box": {"xmin": 12, "ymin": 40, "xmax": 210, "ymax": 300}}, …]

Limits: ``tsbatch.limits.image_pixels``. Images of a batch that have one shape after resizing share a forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch
from pydantic import Field

from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.images.handler import ImageHandler, model_output
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, STRING, array_of, object_of

CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")


class DetectionParameters(Section):
    """Parameters of a request.

    Attributes:
        threshold: return objects with a higher score.
    """

    threshold: float = Field(default=0.5, ge=0, le=1)


class ObjectDetectionHandler(ImageHandler):
    """Finds objects. See the module for input, output and parameters."""

    task: ClassVar[str] = "object-detection"
    parameters_class: ClassVar[Any] = DetectionParameters
    output_schema: ClassVar[Any] = array_of(
        object_of({"score": NUMBER, "label": STRING, "box": object_of({}, dict.fromkeys(CORNERS, INTEGER))})
    )
    auto_class: ClassVar[str] = "AutoModelForObjectDetection"

    def prepare(self) -> None:
        """Load the image processor, and read the names of the classes."""
        super().prepare()
        self.load_processor("post_process_object_detection")
        self.names = self.read_class_names()

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """``logits`` (n, queries, classes) and ``pred_boxes`` (n, queries, 4), relative to the image."""
        found = self.model(**inputs)
        return {"logits": found.logits.float(), "pred_boxes": found.pred_boxes.float()}

    def postprocess(self, outputs: Sequence[Mapping[str, torch.Tensor]], items: Sequence[Item]) -> list[Any]:
        """Turn rows of logits and boxes into the objects above each request's threshold."""
        thresholds = [item.parameters.threshold for item in items]
        found = self.processor.post_process_object_detection(
            model_output(outputs), threshold=min(thresholds), target_sizes=[item.state for item in items]
        )
        return [self._objects(each, threshold) for each, threshold in zip(found, thresholds, strict=True)]

    def _objects(self, found: Mapping[str, torch.Tensor], threshold: float) -> list[dict[str, Any]]:
        kept = found["scores"] > threshold
        scores, labels, boxes = (found[name][kept] for name in ("scores", "labels", "boxes"))
        return [
            {"score": score, "label": self.names[label], "box": dict(zip(CORNERS, box, strict=True))}
            for score, label, box in zip(scores.tolist(), labels.tolist(), boxes.int().tolist(), strict=True)
        ]
