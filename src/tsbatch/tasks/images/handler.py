"""The image front end: what every task on images shares.

::

    bytes ── decode, resize (each image in a thread) ── stack (images of one shape) ── scale, normalise ── the model
             preprocess                                 collate                        inference

An image is small once it is resized, so only as many large ones are in memory as there are threads. Images of
different shapes are never padded to each other: what a convolution sees beside an image changes its answer.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeVar

import numpy as np
import torch

from tsbatch.batching.rows import split, to_cpu
from tsbatch.batching.strategy import Choice
from tsbatch.errors import LoadError, RequestError
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.images.image_files import Image, decode_image, guarded
from tsbatch.tasks.images.preprocessing import (
    FILE,
    Arrays,
    FileSteps,
    Preprocessing,
    Steps,
    read_preprocessing,
    steps_of_processor,
)
from tsbatch.tasks.shared.pretrained import PretrainedHandler
from tsbatch.tasks.shared.pretrained_folder import PROCESSOR_FILES
from tsbatch.tasks.shared.task_handler import first_line
from tsbatch.worker.resources import to_device

IMAGE_SCHEMA: Final[Mapping[str, Any]] = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}
"""JSON Schema of an image; a raw body and a form's field need no base64."""
EXAMPLE_SIZES: Final = ((240, 320), (320, 240))
STOCK: Final = (
    '{"resize": 256, "crop": 224, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}, '
    "which is what TorchServe's image_classifier does"
)

T = TypeVar("T")
R = TypeVar("R")


class ImageOptions(Section):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        preprocessing: the steps before the model; in place of ``preprocessing.json`` or the model's image processor.
    """

    preprocessing: Preprocessing | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """What an image is before it is stacked with others.

    Attributes:
        arrays: its resized pixels and what else the model takes, by name.
        size: height and width of the upright original.
    """

    arrays: Arrays
    size: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Pictures of one shape, stacked.

    Attributes:
        places: where in the micro-batch they came from.
        tensors: n rows each, by name.
    """

    places: Sequence[int]
    tensors: Mapping[str, torch.Tensor]


class ImageHandler(PretrainedHandler):
    """Base of the image tasks. A task overrides :meth:`load_model`, :meth:`forward` and ``postprocess``."""

    wants: ClassVar[Literal["text", "bytes", "json"]] = "bytes"
    item_ndim: ClassVar[int | None] = 0
    deterministic: ClassVar[bool] = True
    model_inputs: ClassVar[Sequence[str]] = ("pixel_values",)
    input_schema: ClassVar[Any] = IMAGE_SCHEMA
    settings_class: ClassVar[Any] = ImageOptions
    steps: Steps
    processor: Any = None
    """The transformers image processor; None where a preprocessing file takes its place."""

    @property
    def is_pretrained(self) -> bool:
        """Whether the archive holds a transformers folder, and not a model of another kind."""
        named = self._model_section.get("modelFile") or self._model_section.get("serializedFile")
        return not named and (self.model_dir / "config.json").is_file()

    def prepare(self) -> None:
        """Find out what the model wants done to an image.

        Raises:
            LoadError: the archive does not say it.
        """
        given = read_preprocessing(self.model_dir, self.options.preprocessing)
        if given is not None:
            self.steps = FileSteps(given)
        elif self.is_pretrained:
            self.steps = steps_of_processor(self.load_processor())
        else:
            raise LoadError(f"{FILE}: not in the archive, and nothing else says how to prepare an image; write {STOCK}")
        parameters = self.model.parameters() if isinstance(self.model, torch.nn.Module) else iter(())
        self._dtype = next((entry.dtype for entry in parameters if entry.is_floating_point()), torch.float32)

    def load_processor(self, *methods: str) -> Any:
        """The transformers image processor, loaded once.

        Args:
            methods: what the task asks of it beside preparing images.

        Raises:
            LoadError: it cannot be loaded, or has no such method.
        """
        if self.processor is None:
            import transformers

            old = transformers.__version__.startswith("4.")
            without_torchvision: dict[str, Any] = {"use_fast": False} if old else {"backend": "pil"}
            self.processor = self.from_folder(
                "image processor", transformers.AutoImageProcessor, files=PROCESSOR_FILES, **without_torchvision
            )
        missing = [method for method in methods if not hasattr(self.processor, method)]
        if missing:
            name = type(self.processor).__name__
            raise LoadError(f"the image processor {name} has no {missing[0]}, which {self.task} needs")
        return self.processor

    def choose_batching(self) -> Choice:
        """Nothing is ever padded, so only the limits of a micro-batch cut."""
        asked = self.settings.batching.mode
        if asked in ("auto", "packed"):
            return Choice("packed", "images of one shape share a forward pass, and none is padded")
        return super().choose_batching()

    def examples(self) -> Sequence[Any]:
        """A wide image and a high one."""
        return [_png(height, width) for height, width in EXAMPLE_SIZES]

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Files to pictures: one an item, or what is wrong with it; the original's size goes to ``item.state``."""
        with guarded(self.settings.limits.image_pixels):
            pictures = self.in_threads(self._picture, [item.value for item in items])
        for item, picture in zip(items, pictures, strict=True):
            if isinstance(picture, Picture):
                item.state = picture.size
        return pictures

    def _picture(self, data: bytes) -> Picture | RequestError:
        try:
            image = decode_image(data, self.settings.limits.image_pixels)
            return Picture(self.steps.arrays(image), (image.height, image.width))
        except RequestError as error:
            return error

    def in_threads(self, call: Callable[[T], R], entries: Sequence[T]) -> list[R]:
        """``call`` on each entry, in this worker's share of threads; Pillow works without Python's lock."""
        threads = min(self.threads.threads, len(entries))
        if threads < 2:
            return [call(entry) for entry in entries]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(call, entries))

    def lengths(self, features: Sequence[Picture]) -> Sequence[int]:
        """Numbers in each picture: three a pixel."""
        return [next(iter(feature.arrays.values())).size for feature in features]

    def collate(self, features: Sequence[Picture]) -> list[Group]:
        """Pictures of one shape, stacked."""
        places: dict[Any, list[int]] = {}
        for place, feature in enumerate(features):
            shape = tuple((name, array.shape) for name, array in feature.arrays.items())
            places.setdefault(shape, []).append(place)
        return [Group(found, _stacked([features[place].arrays for place in found])) for found in places.values()]

    def inference(self, tensors: Sequence[Group]) -> Any:
        """Each group through the model; one output a picture, in their order."""
        outputs = [to_cpu(self.forward(self.finished(group))) for group in tensors]
        if len(outputs) == 1:
            return outputs[0]
        rows: list[Any] = [None] * sum(len(group.places) for group in tensors)
        for group, output in zip(tensors, outputs, strict=True):
            entries = split(output, len(group.places), stage="inference", what="outputs")
            for place, row in zip(group.places, entries, strict=True):
                rows[place] = row
        return rows

    def finished(self, group: Group) -> dict[str, torch.Tensor]:
        """What the model takes: on its device, scaled, normalised, in its dtype."""
        made = self.steps.finish(to_device(group.tensors, self.device))
        return {name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor for name, tensor in made.items()}

    def example_inputs(self) -> dict[str, torch.Tensor]:
        """What the model takes, of one made-up image.

        Raises:
            LoadError: it cannot be prepared.
        """
        picture = self._picture(_png(*EXAMPLE_SIZES[0]))
        if not isinstance(picture, Picture):
            raise LoadError(f"an image of {EXAMPLE_SIZES[0]} pixels cannot be prepared: {picture}")
        [group] = self.collate([picture])
        return self.finished(group)

    def tried(self) -> Any:
        """What the model gives for one made-up image.

        Raises:
            LoadError: it cannot be prepared, or is not what the model takes.
        """
        inputs = self.example_inputs()
        try:
            with torch.inference_mode():
                return self.model(**inputs) if self.is_pretrained else self.model(inputs["pixel_values"])
        except Exception as error:
            shape = list(inputs["pixel_values"].shape)
            raise LoadError(f"the model does not take prepared images of shape {shape}: {first_line(error)}") from error

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """``pixel_values`` (n, channels, height, width), and a ``pixel_mask`` where the model has one, to n rows."""
        raise NotImplementedError


def _stacked(arrays: Sequence[Arrays]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.stack([entry[name] for entry in arrays])) for name in arrays[0]}


def _png(height: int, width: int) -> bytes:
    rows, columns = np.linspace(0, 255, height), np.linspace(0, 255, width)
    colors = np.stack(np.broadcast_arrays(rows[:, None], columns[None], 128), axis=-1)
    file = io.BytesIO()
    Image.fromarray(colors.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def columns(rows: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Rows of outputs of one shape, stacked name by name."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
