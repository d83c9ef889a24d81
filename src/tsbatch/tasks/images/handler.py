"""The image front end: code that all tasks on images share.

::

    bytes ── decode, resize (each image in a thread) ── stack (images of one shape) ── scale, normalise ── the model
             preprocess                                 collate                        inference

Resized images are small, so that only as many large images are in memory as there are threads. Images of different
shapes are never padded to each other: with padding next to an image a convolution gives another answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Final, Literal, TypeVar

import numpy as np
import torch

from tsbatch.batching.rows import to_cpu
from tsbatch.batching.strategy import Choice
from tsbatch.errors import LoadError, RequestError, first_line
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.images.image_files import decode_image, encode_png, pillow_limits
from tsbatch.tasks.images.preprocessing import (
    FILE,
    Arrays,
    FileSteps,
    Preprocessing,
    Steps,
    processor_steps,
    read_preprocessing,
)
from tsbatch.tasks.shared.grouping import Groups, collate_groups, run_groups
from tsbatch.tasks.shared.pretrained import PretrainedHandler
from tsbatch.tasks.shared.pretrained_folder import PROCESSOR_FILES
from tsbatch.worker.resources import to_device

IMAGE_SCHEMA: Final[Mapping[str, Any]] = {"type": "string", "contentEncoding": "base64", "contentMediaType": "image/*"}
"""JSON Schema of an image; a raw body and a form's field need no base64."""
EXAMPLE_SIZES: Final = ((240, 320), (320, 240))
EXAMPLE_STEPS: Final = (
    '{"resize": 256, "crop": 224, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}, '
    "the steps of TorchServe's image_classifier"
)

T = TypeVar("T")
R = TypeVar("R")


class ImageOptions(Section):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        preprocessing: the steps before the model; instead of ``preprocessing.json`` or the model's image processor.
    """

    preprocessing: Preprocessing | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A prepared image, before it is stacked with others.

    Attributes:
        arrays: its resized pixels and the model's other inputs, by name.
        size: height and width of the upright original.
    """

    arrays: Arrays
    size: tuple[int, int]

    def shapes(self) -> Hashable:
        """Pictures with equal shapes can be stacked."""
        return tuple((name, array.shape) for name, array in self.arrays.items())


class ImageHandler(PretrainedHandler):
    """Base of the image tasks. A task overrides :meth:`load_model`, :meth:`forward` and ``postprocess``."""

    wants: ClassVar[Literal["text", "bytes", "json"]] = "bytes"
    model_inputs: ClassVar[Sequence[str]] = ("pixel_values",)
    input_schema: ClassVar[Any] = IMAGE_SCHEMA
    settings_class: ClassVar[Any] = ImageOptions
    steps: Steps
    processor: Any = None
    """The transformers image processor; None if a preprocessing file replaces it."""

    @property
    def is_pretrained(self) -> bool:
        """Whether the archive holds a transformers folder, not another kind of model."""
        named = self._model_section.get("modelFile") or self._model_section.get("serializedFile")
        return not named and (self.model_dir / "config.json").is_file()

    def prepare(self) -> None:
        """Load the preprocessing steps.

        Raises:
            LoadError: the archive does not define them.
        """
        given = read_preprocessing(self.model_dir, self.options.preprocessing)
        if given is not None:
            self.steps = FileSteps(given)
        elif self.is_pretrained:
            self.steps = processor_steps(self.load_processor())
        else:
            raise LoadError(
                f"{FILE}: not in the archive, and nothing else defines how to prepare an image; write {EXAMPLE_STEPS}"
            )
        parameters = self.model.parameters() if isinstance(self.model, torch.nn.Module) else iter(())
        self._dtype = next((entry.dtype for entry in parameters if entry.is_floating_point()), torch.float32)

    def load_processor(self, *methods: str) -> Any:
        """Load the transformers image processor, once.

        Args:
            methods: methods that the task needs besides preparing images.

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
        """Without padding: only the limits of a micro-batch apply."""
        asked = self.settings.batching.mode
        if asked in ("auto", "packed"):
            return Choice("packed", "images of one shape share a forward pass, and none is padded")
        return super().choose_batching()

    def examples(self) -> Sequence[Any]:
        """A wide image and a high one."""
        return [_example(*size) for size in EXAMPLE_SIZES]

    def preprocess(self, items: Sequence[Item]) -> list[Any]:
        """Prepare the images: for each item a picture, or its error; ``item.state`` is the original's size."""
        with pillow_limits(self.settings.limits.image_pixels):
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
        """Call a function on each entry, in this worker's share of threads; Pillow works without Python's lock."""
        threads = min(self.threads.threads, len(entries))
        if threads < 2:
            return [call(entry) for entry in entries]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(call, entries))

    def lengths(self, features: Sequence[Picture]) -> Sequence[int]:
        """The number of values in each picture: three a pixel."""
        return [next(iter(feature.arrays.values())).size for feature in features]

    def collate(self, features: Sequence[Picture]) -> Groups:
        """Stack the pictures of each shape."""
        return collate_groups(
            [feature.arrays for feature in features], [feature.shapes() for feature in features], _stack
        )

    def inference(self, tensors: Groups) -> Any:
        """Run the model on each group; one output a picture, in their order."""
        return run_groups(tensors, lambda batch, _: to_cpu(self.forward(self.finish(batch))))

    def finish(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The model's inputs from stacked pictures: on its device, scaled, normalised, in its dtype."""
        done = self.steps.finish(to_device(batch, self.device))
        return {name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor for name, tensor in done.items()}

    def try_model(self) -> Any:
        """The model's output for one generated image.

        Raises:
            LoadError: the image cannot be prepared, or the model does not take it.
        """
        picture = self._picture(_example(*EXAMPLE_SIZES[0]))
        if not isinstance(picture, Picture):
            raise LoadError(f"an image of {EXAMPLE_SIZES[0]} pixels cannot be prepared: {picture}")
        inputs = self.finish(_stack([picture.arrays]))
        try:
            with torch.inference_mode():
                return self.model(**inputs) if self.is_pretrained else self.model(inputs["pixel_values"])
        except Exception as error:
            shape = list(inputs["pixel_values"].shape)
            raise LoadError(f"the model does not take prepared images of shape {shape}: {first_line(error)}") from error

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """The model's output, n rows, for ``pixel_values`` (n, channels, height, width), and ``pixel_mask`` if any."""
        raise NotImplementedError


def _stack(arrays: Sequence[Arrays]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.stack([entry[name] for entry in arrays])) for name in arrays[0]}


def _example(height: int, width: int) -> bytes:
    rows, columns = np.linspace(0, 255, height), np.linspace(0, 255, width)
    colors = np.stack(np.broadcast_arrays(rows[:, None], columns[None], 128), axis=-1)
    return encode_png(colors.astype(np.uint8))


def model_output(rows: Sequence[Mapping[str, torch.Tensor]]) -> SimpleNamespace:
    """Rows of outputs of one shape as one output of the model, as transformers' postprocessing takes it."""
    return SimpleNamespace(**{name: torch.stack([row[name] for row in rows]) for name in rows[0]})
