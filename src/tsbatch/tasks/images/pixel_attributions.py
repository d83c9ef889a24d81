"""Explain a label by the contribution of each part of an image: integrated gradients over pixels.

::

    {"label": "tabby", "logit": 9.2, "baseline": 0.1, "delta": 0.02, "size": [224, 224], "grid": [[0.3, …], …]}
    {"label": "tabby", …, "size": [224, 224], "map": "iVBORw0KGgo…", "scale": 0.04}

They refer to the image as the model sees it, resized and cropped to ``size`` (height, width); the baseline is black.
The numbers of a grid are sums over its cells and add up to ``logit - baseline + delta``. A map is a grey PNG in base64:
the contribution of a pixel is (grey - 128) / 127 · scale.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import NotSupported, RequestError
from tsbatch.protocol.request import Item
from tsbatch.tasks.images.handler import ImageHandler, Picture
from tsbatch.tasks.images.image_files import Image, encode_png
from tsbatch.tasks.shared.attributions import (
    Array,
    ExplainingParameters,
    check_explains,
    explain_in_passes,
    explain_inputs,
    explanation_schema,
)
from tsbatch.tasks.shared.schemas import INTEGER, NUMBER, STRING, array_of

EXPLANATION_SCHEMA: Final[Mapping[str, Any]] = explanation_schema(
    {"size": array_of(INTEGER)},
    {
        "scale": NUMBER,
        "grid": array_of(array_of(NUMBER)),
        "map": {**STRING, "contentEncoding": "base64", "contentMediaType": "image/png"},
    },
)
"""JSON Schema of one item's explanation."""


class PixelExplainingParameters(ExplainingParameters):
    """Parameters of a request to ``/explanations``.

    Attributes:
        attributions: grid (numbers) or map (a PNG).
        grid: rows and columns of the grid.
    """

    attributions: Literal["grid", "map"] = Field(default="grid", description="/explanations: numbers, or a PNG")
    grid: int = Field(default=14, ge=1, le=64, description="/explanations: rows and columns of the grid")


def explain_pixels(
    handler: ImageHandler, items: Sequence[Item], pictures: Sequence[Picture | RequestError]
) -> list[Any]:
    """Explain each item.

    Args:
        handler: a loaded handler of a classifier.
        items: what to explain.
        pictures: the results of ``preprocess``.

    Returns:
        For each item its explanation or error.

    Raises:
        NotSupported: the engine or the model does not support it, or Captum is missing.
    """
    check_explains(handler)
    if not isinstance(handler.model, torch.nn.Module):
        raise NotSupported("this model has no gradients", expected="a PyTorch model; an ONNX graph has none")

    return explain_in_passes(items, pictures, partial(_explain, handler), key=Picture.shapes)


def _explain(handler: ImageHandler, items: Sequence[Item], pictures: Sequence[Picture]) -> list[Any]:
    """Explanations of images of one shape and one number of steps."""
    blank = [Picture(handler.steps.arrays(Image.new("RGB", picture.size[::-1])), picture.size) for picture in pictures]
    inputs, black = (handler.finish(handler.collate(given).batches[0]) for given in (pictures, blank))
    others = [name for name in inputs if name != "pixel_values"]

    def forward(pixels: torch.Tensor, *context: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = handler.forward({"pixel_values": pixels, **dict(zip(others, context, strict=True))})
        return logits

    return explain_inputs(
        forward,
        inputs["pixel_values"],
        black["pixel_values"],
        items,
        handler.names,
        context=tuple(inputs[name] for name in others),
        sum_over=1,
        details=lambda index, image: {"size": list(image.shape), **_encode(image, items[index].parameters)},
    )


def _encode(image: Array, asked: PixelExplainingParameters) -> dict[str, Any]:
    """Attributions (height, width) in the form that the request asks for."""
    if asked.attributions == "grid":
        return {"grid": _grid(image, asked.grid)}
    scale = float(np.abs(image).max())
    grey = np.round(128 + 127 * image / (scale or 1)).astype(np.uint8)
    return {"map": base64.b64encode(encode_png(grey)).decode("ascii"), "scale": scale}


def _grid(image: Array, cells: int) -> Array:
    """Sums over at most ``cells`` rows and columns of nearly equal size."""
    for axis in (0, 1):
        count = min(cells, image.shape[axis])
        starts = np.arange(count) * image.shape[axis] // count
        image = np.add.reduceat(image, starts, axis=axis)
    return image
