"""image-segmentation: which pixels are what, from a transformers folder (SegFormer, MaskFormer, Mask2Former, DETR …).

Input: an image, or a list of them: a raw body, a form's field, base64 or a ``data:`` URL. Parameters: ``subtask``,
``threshold``, ``mask_threshold``, ``overlap_mask_area_threshold``, ``mask_format``. Output for each image, as
transformers' pipeline, with masks of the upright original's size::

    [{"score": 0.98, "label": "cat", "mask": "iVBORw0KGgo…"}, …]     a grey PNG in base64, 255 where the segment is
    [{"score": null, "label": "sky", "mask": {"size": [2, 3], "counts": [1, 5]}}, …]      COCO's run lengths

Limits: ``tsbatch.limits.image_pixels``, and ``handler.mask_megabytes`` while masks are enlarged: segments, or classes,
times pixels times 4 bytes, 1024 unless set; over it the answer is a 413.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Final, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import LoadError, PayloadTooLarge, Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.settings import Section
from tsbatch.tasks.images.handler import ImageHandler, ImageOptions, columns
from tsbatch.tasks.images.masks import Mask, MaskFormat, class_map, write_mask
from tsbatch.tasks.shared.class_names import class_names
from tsbatch.tasks.shared.pretrained_folder import read_config, saved_as

Subtask = Literal["panoptic", "instance", "semantic"]
SUBTASKS: Final[tuple[Subtask, ...]] = ("panoptic", "instance", "semantic")
"""In the order in which the pipeline chooses when nobody asks."""
OUTPUTS: Final = ("logits", "pred_masks", "class_queries_logits", "masks_queries_logits")
"""What of a model's outputs masks are made of."""


class SegmentationOptions(ImageOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        mask_megabytes: memory for enlarging the masks of one image.
    """

    mask_megabytes: int = Field(default=1024, ge=1)


class SegmentationParameters(Section):
    """What a request may ask for; the thresholds mean nothing to ``semantic``.

    Attributes:
        subtask: panoptic, instance or semantic; left out, the first of them that the model can do.
        threshold: only segments with a score above it.
        mask_threshold: a mask is where its probability is at least this.
        overlap_mask_area_threshold: a segment stays where more than this share of its mask is its own.
        mask_format: png (base64) or rle (COCO's run lengths).
    """

    subtask: Subtask | None = None
    threshold: float = Field(default=0.9, ge=0, le=1)
    mask_threshold: float = Field(default=0.5, ge=0, le=1)
    overlap_mask_area_threshold: float = Field(default=0.5, ge=0, le=1)
    mask_format: MaskFormat = "png"


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of an image.

    Attributes:
        value: what the pixels of the segmentation map have in it.
        label: its class.
        score: None where the model gives none.
    """

    value: int
    label: int
    score: float | None


class ImageSegmentationHandler(ImageHandler):
    """Segments images. See the module for input, output and parameters."""

    task: ClassVar[str] = "image-segmentation"
    parameters_class: ClassVar[Any] = SegmentationParameters
    settings_class: ClassVar[Any] = SegmentationOptions
    output_schema: ClassVar[Any] = {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["score", "label", "mask"],
            "properties": {
                "score": {"type": ["number", "null"]},
                "label": {"type": "string"},
                "mask": {"oneOf": [{"type": "string", "contentEncoding": "base64"}, {"type": "object"}]},
            },
        },
    }
    names: list[str]

    def load_model(self) -> Any:
        """The model, of the class that config.json names: there is one Auto class for each kind of segmentation."""
        import transformers

        name = saved_as(read_config(self.model_dir))
        if "Segmentation" not in name or not hasattr(transformers, name):
            raise LoadError(
                f"config.json: architectures: {name!r} is no segmentation model of this transformers; "
                'expected one as ["SegformerForSemanticSegmentation"]'
            )
        return self.load_pretrained(getattr(transformers, name), complete=True)

    def prepare(self) -> None:
        """Load the image processor and the names of the classes, and see what the two can do."""
        super().prepare()
        self.load_processor("post_process_semantic_segmentation")
        config = self.model.config
        self.names = class_names(config.num_labels, folder=self.model_dir, aux=self.aux, config=config)
        self.subtasks = [task for task in SUBTASKS if hasattr(self.processor, f"post_process_{task}_segmentation")]

    def labels(self) -> list[str]:
        """The names of the classes."""
        return self.names

    def decode_request(self, request: Request) -> list[Item]:
        """The items of one request, with a subtask that this model can do."""
        items = super().decode_request(request)
        for item in items:
            if (asked := item.parameters.subtask) not in (None, *self.subtasks):
                known = ", ".join(self.subtasks)
                raise Unprocessable(f"parameters.subtask: this model cannot do {asked}", expected=f"one of: {known}")
        return items

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Pixels to those of :data:`OUTPUTS` that the model has, n rows each."""
        found = self.model(**inputs)
        return {name: found[name].float() for name in OUTPUTS if name in found}

    def postprocess(self, outputs: Sequence[Mapping[str, torch.Tensor]], items: Sequence[Item]) -> list[Any]:
        """Rows of outputs to segments, image by image: enlarged to the original, they are too large for more."""
        return [self._answer(row, item) for row, item in zip(outputs, items, strict=True)]

    def _answer(self, row: Mapping[str, torch.Tensor], item: Item) -> list[dict[str, Any]] | PayloadTooLarge:
        wish: SegmentationParameters = item.parameters
        semantic = (wish.subtask or self.subtasks[0]) == "semantic"
        try:
            found, segments = self._semantic(row, item) if semantic else self._segments(row, item)
        except PayloadTooLarge as error:
            return error
        # One mask a thread at a time: a hundred of a large photo would not fit.
        masks = self.in_threads(lambda segment: write_mask(found == segment.value, wish.mask_format), segments)
        return [
            {"score": segment.score, "label": self.names[segment.label], "mask": mask}
            for segment, mask in zip(segments, masks, strict=True)
        ]

    def _semantic(self, row: Mapping[str, torch.Tensor], item: Item) -> tuple[Mask, list[Segment]]:
        if set(row) == {"logits"}:
            found = class_map(row["logits"], item.state, self.options.mask_megabytes << 20)
        else:
            self._check_memory(len(self.names), item.state)
            [classes] = self.processor.post_process_semantic_segmentation(
                SimpleNamespace(**columns([row])), target_sizes=[item.state]
            )
            found = classes.numpy()
        present = np.flatnonzero(np.bincount(found.ravel())).tolist()
        return found, [Segment(label, label, None) for label in present]

    def _segments(self, row: Mapping[str, torch.Tensor], item: Item) -> tuple[Mask, list[Segment]]:
        wish: SegmentationParameters = item.parameters
        queries = row["class_queries_logits"] if "class_queries_logits" in row else row["logits"]
        scores, labels = queries.softmax(-1).max(-1)
        kept = int(((scores > wish.threshold) & (labels < queries.shape[-1] - 1)).sum())  # the last class is none
        self._check_memory(kept, item.state)
        subtask = wish.subtask or self.subtasks[0]
        process = getattr(self.processor, f"post_process_{subtask}_segmentation")
        fused: dict[str, Any] = {"label_ids_to_fuse": set()} if subtask == "panoptic" else {}  # else the log is told
        [found] = process(
            SimpleNamespace(**columns([row])),
            threshold=wish.threshold,
            mask_threshold=wish.mask_threshold,
            overlap_mask_area_threshold=wish.overlap_mask_area_threshold,
            target_sizes=[item.state],
            **fused,
        )
        segments = [Segment(entry["id"], entry["label_id"], entry["score"]) for entry in found["segments_info"]]
        return found["segmentation"].numpy(), segments

    def _check_memory(self, layers: int, size: tuple[int, int]) -> None:
        megabytes = 4 * layers * size[0] * size[1] >> 20
        if megabytes > self.options.mask_megabytes:
            raise PayloadTooLarge(
                f"{layers} masks of {size[1]} × {size[0]} pixels take {megabytes:,} MB, over the limit of "
                f"{self.options.mask_megabytes:,}",
                expected="a smaller image, or a higher threshold",
            )
