"""image-embedding: one vector an image, from a transformers folder (ViT, DINOv2, ResNet, CLIP …).

Input: an image, or a list of them: a raw body, a form's field, base64 or a ``data:`` URL. Parameter: ``normalize``.
Output for each image::

    {"embedding": [0.01, …]}

Models that know images and texts (CLIP, SigLIP) give the vector that is compared with texts. Others are pooled: by
their own pooler where the folder has its weights, otherwise by the first token (ViT) or the mean over the image
(ResNet); unless ``handler.pooling`` says something else. Limits: ``tsbatch.limits.image_pixels``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch

from tsbatch.errors import LoadError, SettingsError
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.images.handler import ImageHandler, ImageOptions

Pooling = Literal["pooler", "cls", "mean"]


class ImageEmbeddingOptions(ImageOptions):
    """The section ``handler:`` of model-config.yaml.

    Attributes:
        pooling: pooler (the model's own), cls (the first token) or mean (over all tokens, or the whole image).
        normalize: scale to length 1 where a request does not say.
    """

    pooling: Pooling | None = None
    normalize: bool = False


class ImageEmbeddingParameters(Section):
    """What a request may ask for.

    Attributes:
        normalize: scale to length 1; as the archive has it when left out.
    """

    normalize: bool | None = None


class ImageEmbeddingHandler(ImageHandler):
    """Embeds images. See the module for input, output and parameters."""

    task: ClassVar[str] = "image-embedding"
    parameters_class: ClassVar[Any] = ImageEmbeddingParameters
    settings_class: ClassVar[Any] = ImageEmbeddingOptions
    output_schema: ClassVar[Any] = {
        "type": "object",
        "required": ["embedding"],
        "properties": {"embedding": {"type": "array", "items": {"type": "number"}}},
    }
    pooling: Pooling | None = None
    """None for a model that knows texts too."""

    def load_model(self) -> Any:
        """The encoder."""
        from transformers import AutoModel

        return self.load_pretrained(AutoModel)

    def prepare(self) -> None:
        """Load the image processor, and choose the pooling.

        Raises:
            LoadError: the folder lacks weights that the vectors depend on.
        """
        super().prepare()
        made_up = [name for name in self.missing_weights if "pooler" not in name]
        if made_up:
            raise LoadError(f"the folder has no weights for {', '.join(made_up[:3])} of {type(self.model).__name__}")
        if not hasattr(self.model, "get_image_features"):
            self.pooling = self._choose_pooling(self.options.pooling)

    def _choose_pooling(self, asked: Pooling | None) -> Pooling:
        found = self.tried()
        pools = getattr(found, "pooler_output", None) is not None and not self.missing_weights
        tokens = found.last_hidden_state.ndim == 3
        if (asked == "pooler" and not pools) or (asked == "cls" and not tokens):
            what = "no pooler with weights in the folder" if asked == "pooler" else "no tokens"
            raise SettingsError(f"model-config.yaml: handler.pooling: {asked}: this model has {what}")
        return asked or ("pooler" if pools else "cls" if tokens else "mean")

    def forward(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Pixels to vectors (n, dimensions)."""
        if self.pooling is None:
            features = self.model.get_image_features(**inputs)  # transformers 5 puts them into an object
            vectors = features if isinstance(features, torch.Tensor) else features.pooler_output
        else:
            vectors = _pooled(self.model(**inputs), self.pooling)
        return vectors.flatten(1).float()

    def postprocess(self, outputs: torch.Tensor, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Vectors (n, dimensions) to answers, scaled where a request asks for it."""
        usual = self.options.normalize
        wishes = [item.parameters.normalize for item in items]
        scaled = torch.tensor([usual if wish is None else wish for wish in wishes])
        vectors = torch.where(scaled[:, None], torch.nn.functional.normalize(outputs, dim=1), outputs)
        return [{"embedding": vector} for vector in vectors.numpy()]

    def describe_handle(self) -> dict[str, Any]:
        """What the task takes and gives, and how this model is set."""
        return {**super().describe_handle(), "pooling": self.pooling, "normalize": self.options.normalize}


def _pooled(found: Any, pooling: Pooling) -> torch.Tensor:
    states: torch.Tensor = found.pooler_output if pooling == "pooler" else found.last_hidden_state
    if pooling == "cls":
        return states[:, 0]
    if pooling == "mean":
        return states.float().mean(1 if states.ndim == 3 else (2, 3))
    return states
