"""image-classification: the classes of an image, from a transformers folder or any PyTorch classifier.

Input: an image, or a list of them: a raw body, a form's field, base64 or a ``data:`` URL. Parameters: ``top_k``,
``function_to_apply``; for explanations ``target``, ``n_steps``, ``attributions``, ``grid``. Output for each image, best
first, as transformers' pipeline::

    [{"label": "tabby, tabby cat", "score": 0.81}, {"label": "tiger cat", "score": 0.12}, …]

A PyTorch model (TorchScript, an exported program, ONNX, or weights with their class) needs ``preprocessing.json``, and
takes its names from ``index_to_name.json``. It is called with pixels (n, channels, height, width) and gives logits
(n, classes). ``/explanations`` tells what each part of an image added to a label's logit
(``tasks/images/pixel_attributions.py``). Limits: ``tsbatch.limits.image_pixels``, and the kinds of files in
``tasks/images/decoding.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from tsbatch.errors import LoadError
from tsbatch.protocol.request import Item
from tsbatch.tasks.images.handler import ImageHandler, ImageOptions
from tsbatch.tasks.images.pixel_attributions import EXPLANATION_SCHEMA, PixelExplainingParameters, explain_pixels
from tsbatch.tasks.shared.class_names import class_names
from tsbatch.tasks.shared.classification import LABELS_SCHEMA, ClassifyingParameters, Function, classify, usual_function


class ImageClassificationOptions(ImageOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        function_to_apply: what makes scores of the model's outputs where a request does not say; none for a model that
            ends in a softmax of its own.
    """

    function_to_apply: Function | None = None


class ImageClassificationParameters(ClassifyingParameters, PixelExplainingParameters):
    """What a request may ask for.

    Attributes:
        top_k: so many classes, best first; null for all; 0 for the best alone, not in a list.
    """

    top_k: int | None = Field(default=5, ge=0, description="labels, best first; null: all; 0: the best, not in a list")


class ImageClassificationHandler(ImageHandler):
    """Classifies images. See the module for input, output and parameters."""

    task: ClassVar[str] = "image-classification"
    output_schema: ClassVar[Any] = LABELS_SCHEMA
    parameters_class: ClassVar[Any] = ImageClassificationParameters
    settings_class: ClassVar[Any] = ImageClassificationOptions
    names: list[str]
    usual: Function

    def load_model(self) -> Any:
        """The classifier."""
        if not self.is_pretrained:
            return super(ImageHandler, self).load_model()
        from transformers import AutoModelForImageClassification

        return self.load_pretrained(AutoModelForImageClassification, complete=True)

    def prepare(self) -> None:
        """Load the steps before the model, and the names of its classes."""
        super().prepare()
        config = getattr(self.model, "config", None) if self.is_pretrained else None
        count = config.num_labels if config is not None else self._count_classes()
        self.names = class_names(count, folder=self.model_dir, aux=self.aux, config=config)
        self.usual = self.options.function_to_apply or usual_function(config, count)

    def _count_classes(self) -> int:
        logits = self.tried()
        if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
            given = f"shape {tuple(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise LoadError(f"the model gives {given} for one image; expected one logit a class: shape (1, classes)")
        return int(logits.shape[1])

    def labels(self) -> list[str]:
        """The names of the classes."""
        return self.names

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Pixels (n, channels, height, width) to logits (n, classes)."""
        if self.is_pretrained:
            return self.model(**inputs).logits
        return self.model(inputs["pixel_values"])

    def postprocess(self, outputs: torch.Tensor, items: Sequence[Item]) -> list[Any]:
        """Logits (n, classes) to labels, as each request asked."""
        return classify(outputs, [item.parameters for item in items], self.names, self.usual)

    def explain_items(self, items: Sequence[Item]) -> list[Any]:
        """What each part of the images added to a label's logit.

        Raises:
            NotSupported: engine or model has no gradients, or Captum is missing.
        """
        return explain_pixels(self, self.names, items, self.preprocess(items))

    def describe_handle(self) -> dict[str, Any]:
        """What the task takes and gives, and how this model is set."""
        return {**super().describe_handle(), "explanation": dict(EXPLANATION_SCHEMA)}
