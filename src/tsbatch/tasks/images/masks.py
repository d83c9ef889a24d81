"""Masks of images: the class of each pixel from scores at the model's resolution, and masks encoded for JSON."""

from __future__ import annotations

import base64
from typing import Any, Final, Literal

import numpy as np
import torch

from tsbatch.tasks.images.image_files import encode_png

MaskFormat = Literal["png", "rle"]
Mask = np.ndarray[Any, Any]

FEW: Final = 8
"""Layers that are enlarged at once whatever their size, so that comparing them is not slowed down."""

IN_CACHE: Final = 16 << 20
"""Bytes of enlarged layers that are still in the cache when they are compared."""


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
