"""image-classification: the classes of an image, with a transformers folder or any PyTorch classifier.

Input: an image, or a list of them: a raw body, a form's field, base64 or a ``data:`` URL. Parameters: ``top_k``,
``function_to_apply``; for explanations ``target``, ``n_steps``, ``attributions``, ``grid``. Output for each image, best
first, as in transformers' pipeline::

    [{"label": "tabby, tabby cat", "score": 0.81}, {"label": "tiger cat", "score": 0.12}, …]

A PyTorch model (TorchScript, an exported program, ONNX, or weights with their class) needs ``preprocessing.json``, and
takes its class names from ``index_to_name.json``. It is called with pixels (n, channels, height, width) and returns
logits (n, classes). ``/explanations`` shows how much each part of an image contributed to a label's logit
(``tasks/images/pixel_attributions.py``). Limits: ``tsbatch.limits.image_pixels``, and the kinds of files in
``tasks/images/image_files.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from tsbatch.errors import LoadError
from tsbatch.handler import BatchHandler
from tsbatch.protocol.request import Item
from tsbatch.tasks.images.handler import ImageHandler, ImageOptions
from tsbatch.tasks.images.pixel_attributions import EXPLANATION_SCHEMA, PixelExplainingParameters, explain_pixels
from tsbatch.tasks.shared.classification import (
    LABELS_SCHEMA,
    Classifier,
    ClassifyingParameters,
    Function,
    default_function,
)
from tsbatch.tasks.shared.task_handler import class_names


class ImageClassificationOptions(ImageOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        function_to_apply: what turns the model's outputs into scores, unless the request says; none for a model that
            ends in a softmax.
    """

    function_to_apply: Function | None = None


class ImageClassificationParameters(ClassifyingParameters, PixelExplainingParameters):
    """Parameters of a request.

    Attributes:
        top_k: the number of labels, best first; null for all; 0 for the best alone, not in a list.
    """

    top_k: int | None = Field(default=5, ge=0, description="labels, best first; null: all; 0: the best, not in a list")


class ImageClassificationHandler(Classifier, ImageHandler):
    """Classifies images. See the module for input, output and parameters."""

    task: ClassVar[str] = "image-classification"
    output_schema: ClassVar[Any] = LABELS_SCHEMA
    explanation_schema: ClassVar[Any] = EXPLANATION_SCHEMA
    parameters_class: ClassVar[Any] = ImageClassificationParameters
    settings_class: ClassVar[Any] = ImageClassificationOptions
    auto_class: ClassVar[str] = "AutoModelForImageClassification"

    def load_model(self) -> Any:
        """Load the classifier from a transformers folder, or from a file as any handler does."""
        return super().load_model() if self.is_pretrained else BatchHandler.load_model(self)

    def prepare(self) -> None:
        """Load the preprocessing steps, and read the names of the classes."""
        super().prepare()
        config = getattr(self.model, "config", None) if self.is_pretrained else None
        if config is not None:
            count = config.num_labels
        else:
            logits = self.try_model()
            if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
                given = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
                raise LoadError(
                    f"the model returns {given} for one image; expected one logit a class: shape (1, classes)"
                )
            count = int(logits.shape[1])
        self.names = class_names(count, folder=self.model_dir, aux=self.aux, config=config)
        self.default_function = self.options.function_to_apply or default_function(config, count)

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Logits (n, classes) of pixels (n, channels, height, width)."""
        if self.is_pretrained:
            return self.model(**inputs).logits
        return self.model(inputs["pixel_values"])

    def explain_items(self, items: Sequence[Item]) -> list[Any]:
        """Show how much each part of the images contributed to a label's logit.

        Raises:
            NotSupported: the engine or the model has no gradients, or Captum is missing.
        """
        return explain_pixels(self, items, self.preprocess(items))
