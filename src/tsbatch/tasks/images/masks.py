"""Masks of images: from scores at the model's resolution to one class a pixel, and to what JSON can carry."""

from __future__ import annotations

import base64
import io
from typing import Any, Final, Literal

import numpy as np
import torch

from tsbatch.tasks.images.image_files import Image

MaskFormat = Literal["png", "rle"]
Mask = np.ndarray[Any, Any]

FEW: Final = 8
"""Layers that are enlarged at once however large they are, so that comparing them does not take longer."""

IN_CACHE: Final = 16 << 20
"""Bytes of enlarged layers that are still near the processor when they are compared."""


def class_map(scores: torch.Tensor, size: tuple[int, int], max_bytes: int) -> Mask:
    """The best class of each pixel, shape ``size``: of scores (classes, h, w), bilinearly enlarged.

    The same as enlarging all at once, as transformers' ``post_process_semantic_segmentation`` does; but classes are
    enlarged a few at a time, so that 150 of them on a photo of 12 megapixels do not take 7 GB.

    Args:
        scores: one layer a class.
        size: height and width.
        max_bytes: what the enlarged layers may take at once; one always may.
    """
    layer = 4 * size[0] * size[1]
    at_once = max(1, min(max_bytes // layer, max(FEW, IN_CACHE // layer)))
    best = torch.full(size, -torch.inf)
    labels = torch.zeros(size, dtype=torch.int32)
    for start in range(0, len(scores), at_once):
        # A row of a batch may have its classes side by side in memory, and enlarging that takes four times as long.
        layers = scores[None, start : start + at_once].contiguous()
        enlarged = torch.nn.functional.interpolate(layers, size=size, mode="bilinear", align_corners=False)[0]
        values, places = enlarged.max(0)
        better = values > best  # of equals the first class stays, as with argmax
        best[better] = values[better]
        labels[better] = places[better].int() + start
    return labels.numpy()


def write_mask(mask: Mask, form: MaskFormat) -> str | dict[str, Any]:
    """A mask of booleans (height, width): a grey PNG in base64, 255 where it is true, or run lengths."""
    return _png(mask) if form == "png" else run_lengths(mask)


def _png(mask: Mask) -> str:
    file = io.BytesIO()
    Image.fromarray(mask.astype(np.uint8) * np.uint8(255)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def run_lengths(mask: Mask) -> dict[str, Any]:
    """COCO's uncompressed run lengths: column by column, in turn how many are false and how many true."""
    height, width = mask.shape
    flat = mask.ravel(order="F").astype(bool)
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return {"size": [height, width], "counts": [0, *counts] if flat[0] else counts}
