"""What each part of an image added to the logit of a label: integrated gradients over pixels.

::

    {"label": "tabby", "logit": 9.2, "baseline": 0.1, "delta": 0.02, "size": [224, 224], "grid": [[0.3, …], …]}
    {"label": "tabby", …, "size": [224, 224], "map": "iVBORw0KGgo…", "scale": 0.04}

They lie over the image as the model sees it, resized and cropped to ``size`` (height, width); the baseline is black.
The numbers of a grid are sums over its cells and add up to ``logit - baseline + delta``. A map is a grey PNG in base64:
a pixel added (grey - 128) / 127 · scale.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import NotSupported, RequestError, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.tasks.images.handler import Group, ImageHandler, Picture
from tsbatch.tasks.images.image_files import Image
from tsbatch.tasks.shared.attributions import (
    ExplainingParameters,
    check_explains,
    check_steps,
    find_class,
    integrated_gradients,
    share_passes,
)

EXPLANATION_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["label", "logit", "baseline", "delta", "size"],
    "properties": {
        "label": {"type": "string"},
        **{name: {"type": "number"} for name in ("logit", "baseline", "delta", "scale")},
        "size": {"type": "array", "items": {"type": "integer"}},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "map": {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"},
    },
}
"""JSON Schema of one item's explanation."""

Array = np.ndarray[Any, Any]


class PixelExplainingParameters(ExplainingParameters):
    """What a request to ``/explanations`` may ask for.

    Attributes:
        attributions: grid (numbers) or map (a PNG).
        grid: rows and columns of the grid.
    """

    attributions: Literal["grid", "map"] = Field(default="grid", description="/explanations: numbers, or a PNG")
    grid: int = Field(default=14, ge=1, le=64, description="/explanations: rows and columns of the grid")


def explain_pixels(
    handler: ImageHandler, names: Sequence[str], items: Sequence[Item], pictures: Sequence[Picture | RequestError]
) -> list[Any]:
    """The explanation of each item, or the error in its place.

    Args:
        handler: a loaded handler of a classifier.
        names: the names of its classes.
        items: what to explain.
        pictures: what ``preprocess`` made of them.

    Raises:
        NotSupported: engine or model cannot, or Captum is missing.
    """
    check_explains(handler)
    if not isinstance(handler.model, torch.nn.Module):
        raise NotSupported("this model has no gradients", expected="a PyTorch model; an ONNX graph has none")
    results: list[Any] = [error or own for error, own in zip(check_steps(items), pictures, strict=True)]
    ready = [place for place, picture in enumerate(results) if isinstance(picture, Picture)]
    for members in share_passes([items[place].parameters.n_steps for place in ready]):
        alike = [ready[member] for member in members]
        for group in handler.collate([results[place] for place in alike]):
            places = [alike[place] for place in group.places]
            told = _explain(handler, names, [items[place] for place in places], group)
            for place, answer in zip(places, told, strict=True):
                results[place] = answer
    return results


def _explain(handler: ImageHandler, names: Sequence[str], items: Sequence[Item], group: Group) -> list[Any]:
    """Explanations of images of one shape and one number of steps."""
    inputs = handler.finished(group)
    [black_group] = handler.collate([_black(handler, item.state) for item in items])
    black = handler.finished(black_group)
    others = [name for name in inputs if name != "pixel_values"]

    def forward(pixels: torch.Tensor, *context: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = handler.forward({"pixel_values": pixels, **dict(zip(others, context, strict=True))})
        return logits

    context = tuple(inputs[name] for name in others)
    with torch.no_grad():
        logits = forward(inputs["pixel_values"], *context)
    classes = [find_class(item.parameters.target, names, row) for item, row in zip(items, logits, strict=True)]
    told = integrated_gradients(
        forward,
        inputs["pixel_values"],
        black["pixel_values"],
        [0 if isinstance(found, Unprocessable) else found for found in classes],
        context=context,
        n_steps=items[0].parameters.n_steps,
    )
    pixels = told.attributions.float().sum(1).cpu().numpy()
    numbers = zip(told.values.tolist(), told.baselines.tolist(), told.deltas.tolist(), strict=True)
    return [
        found
        if isinstance(found, Unprocessable)
        else {
            "label": names[found],
            "logit": logit,
            "baseline": baseline,
            "delta": delta,
            "size": list(image.shape),
            **_written(image, item.parameters),
        }
        for found, item, image, (logit, baseline, delta) in zip(classes, items, pixels, numbers, strict=True)
    ]


def _black(handler: ImageHandler, size: tuple[int, int]) -> Picture:
    return Picture(handler.steps.arrays(Image.new("RGB", (size[1], size[0]))), size)


def _written(image: Array, wish: PixelExplainingParameters) -> dict[str, Any]:
    """Attributions (height, width) in the form that the request asks for."""
    if wish.attributions == "grid":
        return {"grid": _grid(image, wish.grid)}
    scale = float(np.abs(image).max())
    grey = np.round(128 + 127 * image / (scale or 1)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(grey).save(file, "PNG")
    return {"map": base64.b64encode(file.getvalue()).decode("ascii"), "scale": scale}


def _grid(image: Array, cells: int) -> Array:
    """Sums over at most ``cells`` rows and columns of nearly equal size."""
    for axis in (0, 1):
        count = min(cells, image.shape[axis])
        starts = np.arange(count) * image.shape[axis] // count
        image = np.add.reduceat(image, starts, axis=axis)
    return image
