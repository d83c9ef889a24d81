"""image-segmentation: which pixels show what, with a transformers folder (SegFormer, MaskFormer, Mask2Former, DETR …).

Input: an image, or a list of them: a raw body, a form's field, base64 or a ``data:`` URL. Parameters: ``subtask``,
``threshold``, ``mask_threshold``, ``overlap_mask_area_threshold``, ``mask_format``. Output for each image, as in
transformers' pipeline, with masks in the size of the upright original::

    [{"score": 0.98, "label": "cat", "mask": "iVBORw0KGgo…"}, …]     a grey PNG in base64, 255 where the segment is
    [{"score": null, "label": "sky", "mask": {"size": [2, 3], "counts": [1, 5]}}, …]      COCO's run lengths

Limits: ``tsbatch.limits.image_pixels``, and ``handler.mask_megabytes`` for enlarging masks: segments, or classes, times
pixels times 4 bytes, by default 1024; over it the answer is a 413.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import LoadError, PayloadTooLarge, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.images.handler import ImageHandler, ImageOptions, model_output
from tsbatch.tasks.images.image_files import encode_png
from tsbatch.tasks.shared.pretrained_folder import read_config, saved_as
from tsbatch.tasks.shared.schemas import STRING, array_of, object_of

MaskFormat = Literal["png", "rle"]
Mask = np.ndarray[Any, Any]
FEW: Final = 8
"""Layers that are enlarged at once whatever their size, so that comparing them is not slowed down."""
IN_CACHE: Final = 16 << 20
"""Bytes of enlarged layers that are still in the cache when they are compared."""
Subtask = Literal["panoptic", "instance", "semantic"]
SUBTASKS: Final[tuple[Subtask, ...]] = ("panoptic", "instance", "semantic")
"""In the order in which the pipeline chooses a default."""
OUTPUTS: Final = ("logits", "pred_masks", "class_queries_logits", "masks_queries_logits")
"""The model outputs from which masks are made."""


class SegmentationOptions(ImageOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        mask_megabytes: memory for enlarging the masks of one image.
    """

    mask_megabytes: int = Field(default=1024, ge=1)


class SegmentationParameters(Section):
    """Parameters of a request; the thresholds have no effect on ``semantic``.

    Attributes:
        subtask: panoptic, instance or semantic; by default the first of them that the model supports.
        threshold: return segments with a higher score.
        mask_threshold: a mask is where its probability is at least this.
        overlap_mask_area_threshold: return segments to which more than this share of their mask belongs.
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
        value: the value of its pixels in the segmentation map.
        label: the index of its class.
        score: None if the model gives none.
    """

    value: int
    label: int
    score: float | None


class ImageSegmentationHandler(ImageHandler):
    """Segments images. See the module for input, output and parameters."""

    task: ClassVar[str] = "image-segmentation"
    parameters_class: ClassVar[Any] = SegmentationParameters
    settings_class: ClassVar[Any] = SegmentationOptions
    output_schema: ClassVar[Any] = array_of(
        object_of(
            {
                "score": {"type": ["number", "null"]},
                "label": STRING,
                "mask": {"oneOf": [{**STRING, "contentEncoding": "base64"}, {"type": "object"}]},
            }
        )
    )

    def load_model(self) -> Any:
        """Load the model with the class that config.json names: each kind of segmentation has its own Auto class."""
        import transformers

        name = saved_as(read_config(self.model_dir))
        if "Segmentation" not in name or not hasattr(transformers, name):
            raise LoadError(
                f"config.json: architectures: {name!r} is not a segmentation model of this transformers; "
                'expected one as ["SegformerForSemanticSegmentation"]'
            )
        return self.load_pretrained(getattr(transformers, name), complete=True)

    def prepare(self) -> None:
        """Load the image processor, and read the names of the classes and the supported subtasks."""
        super().prepare()
        self.load_processor("post_process_semantic_segmentation")
        self.names = self.read_class_names()
        self.subtasks = [task for task in SUBTASKS if hasattr(self.processor, f"post_process_{task}_segmentation")]

    def check_item(self, item: Item) -> None:
        """Check that the model supports the item's subtask."""
        if (asked := item.parameters.subtask) not in (None, *self.subtasks):
            known = ", ".join(self.subtasks)
            raise Unprocessable(f"parameters.subtask: this model cannot do {asked}", expected=f"one of: {known}")

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those of :data:`OUTPUTS` that the model has, n rows each."""
        found = self.model(**inputs)
        return {name: found[name].float() for name in OUTPUTS if name in found}

    def postprocess(self, outputs: Sequence[Mapping[str, torch.Tensor]], items: Sequence[Item]) -> list[Any]:
        """Turn rows of outputs into segments, image by image, since enlarged masks take much memory."""
        return [self._answer(row, item) for row, item in zip(outputs, items, strict=True)]

    def _answer(self, row: Mapping[str, torch.Tensor], item: Item) -> list[dict[str, Any]] | PayloadTooLarge:
        asked: SegmentationParameters = item.parameters
        semantic = (asked.subtask or self.subtasks[0]) == "semantic"
        try:
            found, segments = self._semantic(row, item) if semantic else self._segments(row, item)
        except PayloadTooLarge as error:
            return error
        # One mask a thread at a time: a hundred of a large photo would not fit into memory.
        masks = self.in_threads(lambda segment: encode_mask(found == segment.value, asked.mask_format), segments)
        return [
            {"score": segment.score, "label": self.names[segment.label], "mask": mask}
            for segment, mask in zip(segments, masks, strict=True)
        ]

    def _semantic(self, row: Mapping[str, torch.Tensor], item: Item) -> tuple[Mask, list[Segment]]:
        if set(row) == {"logits"}:
            found = class_map(row["logits"], item.state, self.options.mask_megabytes << 20)
        else:
            self._check_memory(len(self.names), item.state)
            process = self.processor.post_process_semantic_segmentation
            [classes] = process(model_output([row]), target_sizes=[item.state])
            found = classes.numpy()
        present = np.flatnonzero(np.bincount(found.ravel())).tolist()
        return found, [Segment(label, label, None) for label in present]

    def _segments(self, row: Mapping[str, torch.Tensor], item: Item) -> tuple[Mask, list[Segment]]:
        asked: SegmentationParameters = item.parameters
        queries = row["class_queries_logits"] if "class_queries_logits" in row else row["logits"]
        scores, labels = queries.softmax(-1).max(-1)
        kept = int(((scores > asked.threshold) & (labels < queries.shape[-1] - 1)).sum())  # the last class means "none"
        self._check_memory(kept, item.state)
        subtask = asked.subtask or self.subtasks[0]
        process = getattr(self.processor, f"post_process_{subtask}_segmentation")
        # Without this transformers logs a warning.
        fused: dict[str, Any] = {"label_ids_to_fuse": set()} if subtask == "panoptic" else {}
        [found] = process(
            model_output([row]),
            threshold=asked.threshold,
            mask_threshold=asked.mask_threshold,
            overlap_mask_area_threshold=asked.overlap_mask_area_threshold,
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


def class_map(scores: torch.Tensor, size: tuple[int, int], max_bytes: int) -> Mask:
    """The best class of each pixel, shape ``size``, from scores (classes, h, w), bilinearly enlarged.

    The result is the same as that of transformers' ``post_process_semantic_segmentation``, which enlarges all classes
    at once. Here it is a few at a time, so that 150 classes on a photo of 12 megapixels do not take 7 GB.

    Args:
        scores: one layer a class.
        size: height and width.
        max_bytes: the limit for the layers enlarged at once, which are never fewer than one.
    """
    layer = 4 * size[0] * size[1]
    at_once = max(1, min(max_bytes // layer, max(FEW, IN_CACHE // layer)))
    best = torch.full(size, -torch.inf)
    labels = torch.zeros(size, dtype=torch.int32)
    for start in range(0, len(scores), at_once):
        # In a row of a batch the classes of a pixel may be adjacent in memory; enlarging that takes four times as long.
        layers = scores[None, start : start + at_once].contiguous()
        enlarged = torch.nn.functional.interpolate(layers, size=size, mode="bilinear", align_corners=False)[0]
        values, classes = enlarged.max(0)
        better = values > best  # of equal classes the first stays, as with argmax
        best[better] = values[better]
        labels[better] = classes[better].int() + start
    return labels.numpy()


def encode_mask(mask: Mask, form: MaskFormat) -> str | dict[str, Any]:
    """A mask of booleans (height, width) as a grey PNG in base64, 255 where it is true, or as run lengths."""
    if form == "rle":
        return run_lengths(mask)
    return base64.b64encode(encode_png(mask.astype(np.uint8) * np.uint8(255))).decode("ascii")


def run_lengths(mask: Mask) -> dict[str, Any]:
    """COCO's uncompressed run lengths: column by column, alternately the numbers of false and of true pixels."""
    height, width = mask.shape
    flat = mask.ravel(order="F").astype(bool)
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return {"size": [height, width], "counts": [0, *counts] if flat[0] else counts}
