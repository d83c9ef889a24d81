"""The preprocessing of images: the steps of a preprocessing file, or those of a transformers image processor.

Steps have two halves::

    arrays(image)     one image, in a thread: resize, crop; 8-bit numbers, small
    finish(tensors)   all images of one shape at once, on the model's device: scale, normalise

Processors do both in one call, image by image. Here they do only the first half, and the second is done on the batch.
When the handler loads, two random images show whether the result is the same; otherwise the processor does both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import LoadError, Unprocessable
from tsbatch.settings import Section, parse_section
from tsbatch.tasks.images.image_files import Image
from tsbatch.tasks.shared.task_handler import read_json

FILE: Final = "preprocessing.json"
TOLERANCE: Final = 1e-5
"""The largest difference between the two ways to run a processor."""
MAX_ENLARGED: Final = 50_000_000
"""The limit for the pixels of a thin image after resizing its shorter side."""

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Tensors = Mapping[str, torch.Tensor]
Pair = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
Numbers = Annotated[list[float], Field(min_length=1)]


class Preprocessing(Section):
    """``preprocessing.json`` in the archive, or ``preprocessing:`` in the section ``handler:`` of model-config.yaml.

    The steps are done in this order; sizes are computed as in torchvision's ``Resize`` and ``CenterCrop``.

    Attributes:
        resize: pixels of the shorter side, or [height, width].
        crop: pixels of the square cut out of the middle, or [height, width]; what is missing is black.
        interpolation: the resampling method.
        color: the order of the channels; gray has one.
        scale: the factor for every number of 0 to 255.
        mean, std: one number, or one a channel, for the scaled values: (value - mean) / std.
    """

    resize: Annotated[int, Field(ge=1)] | Pair | None = None
    crop: Annotated[int, Field(ge=1)] | Pair | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"] = "bilinear"
    color: Literal["rgb", "bgr", "gray"] = "rgb"
    scale: float = 1 / 255
    mean: float | Numbers = 0.0
    std: float | Numbers = 1.0


class FileSteps:
    """The steps of a preprocessing file.

    Raises:
        LoadError: mean or std has a wrong number of entries, or std has a zero.
    """

    def __init__(self, config: Preprocessing) -> None:
        self._config = config
        self._filter = Image.Resampling[config.interpolation.upper()]
        self.channels = 1 if config.color == "gray" else 3
        self._mean, self._std = (_per_channel(name, getattr(config, name), self.channels) for name in ("mean", "std"))
        if not self._std.all():
            raise LoadError(f"preprocessing: std: {config.std} has a zero; each entry must be another number")

    def arrays(self, image: Image.Image) -> Arrays:
        """Resized and cropped, shape (channels, height, width).

        Raises:
            Unprocessable: the image is too thin to resize its shorter side.
        """
        config = self._config
        if config.color == "gray":
            image = image.convert("L")
        if config.resize is not None:
            height, width = _resized_shape(image.height, image.width, config.resize)
            image = image.resize((width, height), self._filter)
        if config.crop is not None:
            image = _crop(image, *((config.crop, config.crop) if isinstance(config.crop, int) else config.crop))
        pixels = np.asarray(image).reshape(image.height, image.width, self.channels).transpose(2, 0, 1)
        return {"pixel_values": pixels[::-1] if config.color == "bgr" else pixels}

    def finish(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Scaled and normalised."""
        return {"pixel_values": _normalise(tensors["pixel_values"], self._config.scale, self._mean, self._std)}


class WholeProcessor:
    """A transformers image processor that does all steps, image by image."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def arrays(self, image: Image.Image) -> Arrays:
        """All arrays that the processor makes of one image.

        Raises:
            Unprocessable: the processor cannot resize it.
        """
        return self._process(image)

    def finish(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Return the tensors, which are already finished."""
        return dict(tensors)

    def _process(self, image: Image.Image, **options: Any) -> dict[str, Array]:
        size = dict(getattr(self._processor, "size", None) or {})
        if size.get("shortest_edge") and not size.get("longest_edge"):
            _resized_shape(image.height, image.width, size["shortest_edge"])
        try:  # channels_last: transformers 4 guesses, and mistakes 1 or 3 pixels for channels
            made = self._processor(image, return_tensors="np", input_data_format="channels_last", **options)
        except (ValueError, ZeroDivisionError) as error:
            given = f"{image.width} × {image.height} pixels"
            raise Unprocessable(f"the model's image processor cannot take {given}: {str(error)[:200]}") from None
        return {name: np.asarray(value)[0] for name, value in made.items()}


class SplitProcessor(WholeProcessor):
    """A transformers image processor that only resizes; the batch is scaled and normalised here."""

    def __init__(self, processor: Any) -> None:
        super().__init__(processor)
        self._scale = float(processor.rescale_factor) if getattr(processor, "do_rescale", False) else 1.0
        normalises = getattr(processor, "do_normalize", False)
        mean, std = (processor.image_mean, processor.image_std) if normalises else (0.0, 1.0)
        self._mean, self._std = (
            _per_channel(name, value, 3) for name, value in (("image_mean", mean), ("image_std", std))
        )

    def arrays(self, image: Image.Image) -> Arrays:
        """One image resized by the processor, shape (3, height, width), and the processor's other arrays.

        Raises:
            Unprocessable: the processor cannot resize it.
        """
        return self._process(image, do_rescale=False, do_normalize=False)

    def finish(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Scaled and normalised."""
        return {**tensors, "pixel_values": _normalise(tensors["pixel_values"], self._scale, self._mean, self._std)}


Steps = FileSteps | WholeProcessor
"""The steps that prepare images for the model; images of one shape have arrays of one shape."""


def processor_steps(processor: Any) -> Steps:
    """The steps of a processor: split if that changes no number by more than :data:`TOLERANCE`, else whole."""
    whole = WholeProcessor(processor)
    try:
        split = SplitProcessor(processor)
        rng = np.random.default_rng(0)
        pixels = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((97, 131), (160, 90))]
        same = all(_same(split, whole, image) for image in map(Image.fromarray, pixels))
    except Exception:  # a processor without these options may raise anything
        same = False
    return split if same else whole


def _same(split: Steps, whole: Steps, image: Image.Image) -> bool:
    made, expected = (
        steps.finish({name: torch.from_numpy(value[None]) for name, value in steps.arrays(image).items()})
        for steps in (split, whole)
    )
    return made.keys() == expected.keys() and all(
        made[name].shape == expected[name].shape
        and bool((made[name].double() - expected[name].double()).abs().max() <= TOLERANCE)
        for name in made
    )


def read_preprocessing(folder: Path, given: Preprocessing | None) -> Preprocessing | None:
    """Read the preprocessing from model-config.yaml, or else from ``preprocessing.json``; None without both.

    Raises:
        LoadError: the file is broken, or has a wrong key or value.
    """
    if given is not None:
        return given
    found = read_json(folder / FILE)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise LoadError(f"{FILE}: expected keys and values, got a list")
    return parse_section(Preprocessing, found, "preprocessing", file=FILE)


def _resized_shape(height: int, width: int, size: int | list[int]) -> tuple[int, int]:
    """Height and width after resizing; an int is the new length of the shorter side, the longer is rounded down."""
    if not isinstance(size, int):
        return size[0], size[1]
    shorter, longer = min(height, width), max(height, width)
    new_longer = int(size * longer / shorter)
    if size * new_longer > MAX_ENLARGED:
        raise Unprocessable(
            f"the image has {width} × {height} pixels, too thin for a shorter side of {size}: it would grow to "
            f"{size * new_longer:,}",
            expected="an image closer to a square",
        )
    return (size, new_longer) if height <= width else (new_longer, size)


def _crop(image: Image.Image, height: int, width: int) -> Image.Image:
    """Cut out the centre; around a smaller image it is black. Odd halves are rounded as in torchvision."""
    missing_x, missing_y = max(width - image.width, 0), max(height - image.height, 0)
    left = round((image.width + missing_x - width) / 2) - missing_x // 2
    top = round((image.height + missing_y - height) / 2) - missing_y // 2
    return image.crop((left, top, left + width, top + height))


def _per_channel(name: str, given: Any, channels: int) -> torch.Tensor:
    """One number, or one a channel, as a tensor of shape (channels or 1, 1, 1)."""
    numbers = [float(given)] if isinstance(given, (int, float)) else [float(number) for number in given]
    if len(numbers) not in (1, channels):
        raise LoadError(f"preprocessing: {name}: {len(numbers)} numbers for {channels} channels")
    return torch.tensor(numbers, dtype=torch.float64).view(-1, 1, 1)


def _normalise(pixels: torch.Tensor, scale: float, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """(pixels · scale - mean) / std in one multiplication and one addition, float32."""
    factor, offset = (scale / std).float(), (-mean / std).float()
    return (pixels * factor.to(pixels.device)).add_(offset.to(pixels.device))
