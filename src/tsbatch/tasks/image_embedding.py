"""image-embedding: one vector per image, with a transformers folder (ViT, DINOv2, ResNet, CLIP …).

Input: an image, or a list of them: a raw body, a form's field, base64 or a ``data:`` URL. Parameter: ``normalize``.
Output for each image::

    {"embedding": [0.01, …]}

Models of images and texts (CLIP, SigLIP) give the vector that is compared with texts, also if only their image half was
saved with its projection (CLIPVisionModelWithProjection). Others are pooled: by their own
pooler if the folder has its weights, otherwise by the first token (ViT) or the mean over the image (ResNet), unless
``handler.pooling`` says otherwise. Limits: ``tsbatch.limits.image_pixels``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch

from tsbatch.errors import SettingsError
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.images.handler import ImageHandler, ImageOptions
from tsbatch.tasks.shared.pretrained_folder import VECTOR_OUTPUTS, read_config, vector_class
from tsbatch.tasks.shared.schemas import NUMBER, array_of, object_of

Pooling = Literal["pooler", "cls", "mean"]


class ImageEmbeddingOptions(ImageOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        pooling: pooler (the model's own), cls (the first token) or mean (over all tokens, or the whole image).
        normalize: scale to length 1, unless the request says.
    """

    pooling: Pooling | None = None
    normalize: bool = False


class ImageEmbeddingParameters(Section):
    """Parameters of a request.

    Attributes:
        normalize: scale to length 1; by default as in the archive's model-config.yaml.
    """

    normalize: bool | None = None


class ImageEmbeddingHandler(ImageHandler):
    """Embeds images. See the module for input, output and parameters."""

    task: ClassVar[str] = "image-embedding"
    parameters_class: ClassVar[Any] = ImageEmbeddingParameters
    settings_class: ClassVar[Any] = ImageEmbeddingOptions
    output_schema: ClassVar[Any] = object_of({"embedding": array_of(NUMBER)})
    pooling: Pooling | None = None
    """None for a model of images and texts."""
    output: str | None = None
    """The model's output that is the vector of an image; None if there is none."""

    def load_model(self) -> Any:
        """Load the encoder."""
        from transformers import AutoModel

        return self.load_pretrained(vector_class(read_config(self.model_dir)) or AutoModel)

    def prepare(self) -> None:
        """Load the image processor, and choose the pooling.

        Raises:
            LoadError: the folder lacks weights on which the vectors depend.
        """
        super().prepare()
        self.check_encoder(self.model)
        self.output = VECTOR_OUTPUTS.get(type(self.model).__name__)
        if self.output and self.options.pooling:
            raise SettingsError("model-config.yaml: handler.pooling: this model cannot be pooled otherwise")
        if not self.output and not hasattr(self.model, "get_image_features"):
            self.pooling = self._choose_pooling(self.options.pooling)

    def _choose_pooling(self, asked: Pooling | None) -> Pooling:
        found = self.try_model()
        pools = getattr(found, "pooler_output", None) is not None and not self.missing_weights
        tokens = found.last_hidden_state.ndim == 3
        if (asked == "pooler" and not pools) or (asked == "cls" and not tokens):
            what = "no pooler with weights in the folder" if asked == "pooler" else "no tokens"
            raise SettingsError(f"model-config.yaml: handler.pooling: {asked}: this model has {what}")
        return asked or ("pooler" if pools else "cls" if tokens else "mean")

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Vectors (n, dimensions) of pixels."""
        if self.output:
            vectors: torch.Tensor = getattr(self.model(**inputs), self.output)
        elif self.pooling is None:
            features = self.model.get_image_features(**inputs)  # transformers 5 returns an object
            vectors = features if isinstance(features, torch.Tensor) else features.pooler_output
        else:
            found = self.model(**inputs)
            vectors = found.pooler_output if self.pooling == "pooler" else found.last_hidden_state
            if self.pooling == "cls":
                vectors = vectors[:, 0]
            elif self.pooling == "mean":
                vectors = vectors.float().mean(1 if vectors.ndim == 3 else (2, 3))
        return vectors.flatten(1).float()

    def postprocess(self, outputs: torch.Tensor, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Scale the vectors (n, dimensions) whose request asks for it."""
        default = self.options.normalize
        asked = [item.parameters.normalize for item in items]
        scaled = torch.tensor([default if normalize is None else normalize for normalize in asked])
        vectors = torch.where(scaled[:, None], torch.nn.functional.normalize(outputs, dim=1), outputs)
        return [{"embedding": vector} for vector in vectors.numpy()]

    def describe_handle(self) -> dict[str, Any]:
        """Describe the task's input and output, and this model's settings."""
        return {**super().describe_handle(), "pooling": self.pooling, "normalize": self.options.normalize}
