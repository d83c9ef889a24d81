"""Handlers in the style of TorchServe's built-in handlers and of its example for Hugging Face models.

Reimplemented after ts/torch_handler/ of 0.12.0 and Transformer_handler_generalized.py in
examples/Huggingface_Transformers of pytorch/serve. They all prepare each request separately, join the rows into one
batch (texts are padded or truncated to 150 tokens, whatever their length), process the output row by row, and return
Python lists and dicts that TorchServe then writes as JSON. The image handlers use Pillow where TorchServe's use
torchvision.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

MAX_LENGTH = 150
"""The example's setting."""
CROP = 224
RESIZED = 256
MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class StockStyle(ABC):
    """A handler that loads its model once and turns each list of rows into a list of answers."""

    auto_class: ClassVar[str]
    """The class of transformers that loads the model."""

    def initialize(self, context: Any) -> None:
        """Load the model from the archive's folder."""
        self.folder = Path(context.system_properties["model_dir"])
        self.model = self.load().eval()

    def load(self) -> Any:
        """Load the model."""
        import transformers

        return getattr(transformers, self.auto_class).from_pretrained(self.folder, local_files_only=True)

    def handle(self, data: Sequence[Mapping[str, Any]], context: Any) -> list[Any]:
        """Return one answer per row."""
        del context
        rows = [row.get("data") or row.get("body") for row in data]
        with torch.inference_mode():
            return self.answers(rows)

    @abstractmethod
    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Compute the answers to the rows."""


class _TextStyle(StockStyle):
    def load(self) -> Any:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        return super().load()

    def joined(self, rows: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Tokenize and pad each row separately, then join the rows."""
        ids = mask = None
        for row in rows:
            inputs = row["inputs"]
            words = (inputs["question"], inputs["context"]) if isinstance(inputs, dict) else (inputs,)
            encoded = self.tokenizer(
                *words, padding="max_length", truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
            )
            own_ids, own_mask = encoded["input_ids"], encoded["attention_mask"]
            ids = own_ids if ids is None else torch.cat((ids, own_ids), 0)
            mask = own_mask if mask is None else torch.cat((mask, own_mask), 0)
        assert ids is not None
        assert mask is not None
        return {"input_ids": ids, "attention_mask": mask}


class TextClassification(_TextStyle):
    """The example's mode ``sequence_classification``."""

    auto_class = "AutoModelForSequenceClassification"

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Return the best label of each text."""
        logits = self.model(**self.joined(rows)).logits
        names = self.model.config.id2label
        return [names[int(logits[index].unsqueeze(0).argmax(1).item())] for index in range(len(rows))]


class TokenClassification(_TextStyle):
    """The example's mode ``token_classification``."""

    auto_class = "AutoModelForTokenClassification"

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Return each token of each text, including padding, with its best label."""
        batch = self.joined(rows)
        logits, names = self.model(**batch).logits, self.model.config.id2label
        found = []
        for index in range(len(rows)):
            best = logits[index].unsqueeze(0).argmax(2)[0].tolist()
            tokens = self.tokenizer.tokenize(self.tokenizer.decode(batch["input_ids"][index]))
            found.append([(token, names[label]) for token, label in zip(tokens, best, strict=False)])
        return found


class QuestionAnswering(_TextStyle):
    """The example's mode ``question_answering``; text beyond 150 tokens is ignored."""

    auto_class = "AutoModelForQuestionAnswering"

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Return the words from the best start to the best end."""
        batch = self.joined(rows)
        output = self.model(**batch)
        found = []
        for index in range(len(rows)):
            start = int(output.start_logits[index].argmax())
            end = int(output.end_logits[index].argmax()) + 1
            tokens = self.tokenizer.convert_ids_to_tokens(batch["input_ids"][index].tolist()[start:end])
            found.append(self.tokenizer.convert_tokens_to_string(tokens))
        return found


class TextGeneration(_TextStyle):
    """The example's mode ``text_generation``, with greedy decoding and the requested length."""

    auto_class = "AutoModelForCausalLM"

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Return each text with its continuation."""
        wanted = rows[0]["parameters"]
        output = self.model.generate(**self.joined(rows), do_sample=False, **wanted)
        return [self.tokenizer.decode(output[index], skip_special_tokens=True) for index in range(len(rows))]


class ImageClassification(StockStyle):
    """The counterpart of ts/torch_handler/image_classifier.py."""

    auto_class = "AutoModelForImageClassification"

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Return labels and scores of the five best classes, or of all if there are fewer."""
        scores = self.model(self.images(rows)).logits.softmax(1)
        best, indexes = scores.topk(min(5, scores.shape[1]), dim=1)
        names = self.model.config.id2label
        return [
            {names[index]: score for index, score in zip(own_indexes, own, strict=True)}
            for own_indexes, own in zip(indexes.tolist(), best.tolist(), strict=True)
        ]

    def images(self, rows: Sequence[Any]) -> torch.Tensor:
        """Open, resize, crop and normalize each file separately."""
        return torch.stack([self._image(row) for row in rows])

    def _image(self, row: bytes) -> torch.Tensor:
        import numpy as np
        from PIL import Image

        image: Any = Image.open(io.BytesIO(row))
        factor = RESIZED / min(image.size)
        image = image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BILINEAR)
        left, top = (image.width - CROP) // 2, (image.height - CROP) // 2
        pixels = torch.from_numpy(np.array(image.crop((left, top, left + CROP, top + CROP))))
        values = pixels.permute(2, 0, 1).contiguous().float().div(255)
        return (values - torch.tensor(MEAN)[:, None, None]) / torch.tensor(SPREAD)[:, None, None]


class ImageSegmentation(ImageClassification):
    """The counterpart of ts/torch_handler/image_segmenter.py: class and score of each pixel, as lists."""

    auto_class = "AutoModelForSemanticSegmentation"

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Return the class and score of each pixel of each image."""
        logits = self.model(self.images(rows)).logits
        logits = torch.nn.functional.interpolate(logits, size=(CROP, CROP), mode="bilinear")
        best = logits.softmax(1).max(dim=1)
        found: list[Any] = torch.stack([best.indices.float(), best.values], dim=3).tolist()
        return found


class Tensor(StockStyle):
    """The counterpart of ts/torch_handler/base_handler.py with a TorchScript file."""

    def load(self) -> Any:
        """Load the TorchScript file."""
        return torch.jit.load(str(self.folder / "model.pt"))  # type: ignore[no-untyped-call]

    def answers(self, rows: Sequence[Any]) -> list[Any]:
        """Run all rows through the model as one tensor and return lists."""
        values = [json.loads(row)["inputs"] if isinstance(row, (bytes, bytearray)) else row["inputs"] for row in rows]
        found: list[Any] = self.model(torch.as_tensor(values)).tolist()
        return found
