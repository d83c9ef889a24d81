"""What a model wants done to an image: the steps of a preprocessing file, or those of a transformers image processor.

Steps have two halves::

    arrays(image)     one image, in a thread: resize, crop; 8-bit numbers, small
    finish(tensors)   all images of one shape at once, on the model's device: scale, normalise

Processors do both in one call and image by image. They are asked for the first half alone, and the second is done
here; two made-up images show when the handler loads whether that gives what the processor gives. Otherwise it works
whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import LoadError, Unprocessable
from tsbatch.settings import Section, parse_section
from tsbatch.tasks.images.image_files import Image
from tsbatch.tasks.shared.task_handler import read_json

FILE: Final = "preprocessing.json"
SAME: Final = 1e-5
"""How near the two ways to run a processor must be."""
MAX_ENLARGED: Final = 50_000_000
"""Pixels that a thin image may have after its shorter side was brought to length."""

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
Tensors = Mapping[str, torch.Tensor]
Pair = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=2, max_length=2)]
Numbers = Annotated[list[float], Field(min_length=1)]


class Steps(Protocol):
    """What is done to images before the model sees them."""

    def arrays(self, image: Image.Image) -> Arrays:
        """One upright RGB image, resized; images of one shape have arrays of one shape."""
        ...

    def finish(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Stacked arrays, n rows each, to what the model takes: ``pixel_values`` (n, channels, height, width) ..."""
        ...


class Preprocessing(Section):
    """``preprocessing.json`` in the archive, or ``preprocessing:`` in the section ``handler:`` of model-config.yaml.

    Done in this order; the sizes are computed as torchvision's ``Resize`` and ``CenterCrop`` compute them.

    Attributes:
        resize: pixels of the shorter side, or [height, width].
        crop: pixels of the square cut out of the middle, or [height, width]; what is missing is black.
        interpolation: of the resizing.
        color: the order of the channels; gray has one.
        scale: every number of 0 to 255 is multiplied with it.
        mean, std: one number, or one a channel, of the scaled values: (value - mean) / std.
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
        LoadError: mean or std fit no image, or std has a zero.
    """

    def __init__(self, wanted: Preprocessing) -> None:
        self._wanted = wanted
        self._filter = Image.Resampling[wanted.interpolation.upper()]
        self.channels = 1 if wanted.color == "gray" else 3
        self._mean, self._std = (_a_channel(name, getattr(wanted, name), self.channels) for name in ("mean", "std"))
        if not self._std.all():
            raise LoadError(f"preprocessing: std: {wanted.std} has a zero, by which nothing can be divided")

    def arrays(self, image: Image.Image) -> Arrays:
        """Resized and cropped, shape (channels, height, width).

        Raises:
            Unprocessable: so thin that its shorter side cannot be brought to length.
        """
        wanted = self._wanted
        if wanted.color == "gray":
            image = image.convert("L")
        if wanted.resize is not None:
            height, width = _resized(image.height, image.width, wanted.resize)
            image = image.resize((width, height), self._filter)
        if wanted.crop is not None:
            image = _cropped(image, *_pair(wanted.crop))
        pixels = np.asarray(image).reshape(image.height, image.width, self.channels).transpose(2, 0, 1)
        return {"pixel_values": pixels[::-1] if wanted.color == "bgr" else pixels}

    def finish(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Scaled and normalised."""
        return {"pixel_values": _normalised(tensors["pixel_values"], self._wanted.scale, self._mean, self._std)}


class WholeProcessor:
    """A transformers image processor as it is: all in one, image by image."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def arrays(self, image: Image.Image) -> Arrays:
        """All that the processor makes of one image.

        Raises:
            Unprocessable: the processor cannot resize it.
        """
        return self._processed(image)

    def finish(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Nothing is left to do."""
        return dict(tensors)

    def _processed(self, image: Image.Image, **options: Any) -> dict[str, Array]:
        size = dict(getattr(self._processor, "size", None) or {})
        if size.get("shortest_edge") and not size.get("longest_edge"):
            _resized(image.height, image.width, size["shortest_edge"])
        try:  # channels_last: transformers 4 guesses, and takes 1 or 3 pixels for channels
            made = self._processor(image, return_tensors="np", input_data_format="channels_last", **options)
        except (ValueError, ZeroDivisionError) as error:
            given = f"{image.width} × {image.height} pixels"
            raise Unprocessable(f"the model's image processor cannot take {given}: {str(error)[:200]}") from None
        return {name: np.asarray(value)[0] for name, value in made.items()}


class SplitProcessor(WholeProcessor):
    """A transformers image processor that only resizes; scaling and normalising are done on the batch."""

    def __init__(self, processor: Any) -> None:
        super().__init__(processor)
        self._scale = float(processor.rescale_factor) if getattr(processor, "do_rescale", False) else 1.0
        normalises = getattr(processor, "do_normalize", False)
        mean, std = (processor.image_mean, processor.image_std) if normalises else (0.0, 1.0)
        self._mean, self._std = (
            _a_channel(name, value, 3) for name, value in (("image_mean", mean), ("image_std", std))
        )

    def arrays(self, image: Image.Image) -> Arrays:
        """What the processor makes of one image before it scales, shape (3, height, width), and its other arrays.

        Raises:
            Unprocessable: the processor cannot resize it.
        """
        return self._processed(image, do_rescale=False, do_normalize=False)

    def finish(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Scaled and normalised."""
        return {**tensors, "pixel_values": _normalised(tensors["pixel_values"], self._scale, self._mean, self._std)}


def steps_of_processor(processor: Any) -> Steps:
    """The processor split where that changes no number by more than :data:`SAME`, otherwise whole."""
    whole = WholeProcessor(processor)
    try:
        split = SplitProcessor(processor)
        same = all(_same(split, whole, image) for image in _made_up())
    except Exception:  # a processor without these options raises anything
        same = False
    return split if same else whole


def _made_up() -> list[Image.Image]:
    noise = np.random.default_rng(0)
    return [Image.fromarray(noise.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in ((97, 131), (160, 90))]


def _same(split: Steps, whole: Steps, image: Image.Image) -> bool:
    made, expected = (
        steps.finish({name: torch.from_numpy(value[None]) for name, value in steps.arrays(image).items()})
        for steps in (split, whole)
    )
    return made.keys() == expected.keys() and all(
        made[name].shape == expected[name].shape
        and bool((made[name].double() - expected[name].double()).abs().max() <= SAME)
        for name in made
    )


def read_preprocessing(folder: Path, given: Preprocessing | None) -> Preprocessing | None:
    """The preprocessing that model-config.yaml or, after it, ``preprocessing.json`` describes; None without both.

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


def _pair(size: int | list[int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _resized(height: int, width: int, size: int | list[int]) -> tuple[int, int]:
    """Height and width after resizing; an int is the shorter side's new length, and the longer is rounded down."""
    if not isinstance(size, int):
        return size[0], size[1]
    shorter, longer = min(height, width), max(height, width)
    new_longer = int(size * longer / shorter)
    if size * new_longer > MAX_ENLARGED:
        raise Unprocessable(
            f"the image has {width} × {height} pixels, too thin for a shorter side of {size}: it would grow to "
            f"{size * new_longer:,}",
            expected="an image nearer to a square",
        )
    return (size, new_longer) if height <= width else (new_longer, size)


def _cropped(image: Image.Image, height: int, width: int) -> Image.Image:
    """The middle; where the image is smaller, black around it. Odd halves as torchvision rounds them."""
    missing_x, missing_y = max(width - image.width, 0), max(height - image.height, 0)
    left = round((image.width + missing_x - width) / 2) - missing_x // 2
    top = round((image.height + missing_y - height) / 2) - missing_y // 2
    return image.crop((left, top, left + width, top + height))


def _a_channel(name: str, given: Any, channels: int) -> torch.Tensor:
    """Shape (channels or 1, 1, 1)."""
    numbers = [float(given)] if isinstance(given, (int, float)) else [float(number) for number in given]
    if len(numbers) not in (1, channels):
        raise LoadError(f"preprocessing: {name}: {len(numbers)} numbers for {channels} channels")
    return torch.tensor(numbers, dtype=torch.float64).view(-1, 1, 1)


def _normalised(pixels: torch.Tensor, scale: float, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """(pixels · scale - mean) / std in one multiplication and one addition, float32."""
    factor, offset = (scale / std).float(), (-mean / std).float()
    return (pixels * factor.to(pixels.device)).add_(offset.to(pixels.device))
