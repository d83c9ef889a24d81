"""Models for the task benchmark, of common small sizes.

Most weights are random, because random weights take as long to compute as trained ones.

All text models use all-MiniLM-L6-v2's tokenizer, and every text classifier has that model's architecture.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from _systems import model_dir

PIXELS: Final = 224
NEW_TOKENS: Final = 24
"""The exact number of tokens that generators write for each request, whatever their weights."""
LABELS: Final = {0: "contradiction", 1: "neutral", 2: "entailment"}

Build = Callable[[Path], object]
"""Saves a model folder."""


def library() -> Any:
    """Import transformers untyped: its types change from version to version and matter little here."""
    return importlib.import_module("transformers")


def encoder(head: str, folder: Path, **config: Any) -> None:
    """Save MiniLM's architecture and weights with a new head.

    Args:
        head: the class in transformers.
        folder: the folder to write.
        config: the head's settings, for example ``num_labels``.
    """
    transformers = library()
    transformers.logging.set_verbosity_error()  # it warns that the head is new, which is intended
    getattr(transformers, head).from_pretrained(model_dir(), local_files_only=True, **config).save_pretrained(folder)
    save_tokenizer(folder)


def decoder(folder: Path) -> None:
    """Save a GPT-2 with 6 layers and width 384."""
    transformers = library()
    sizes = {"n_layer": 6, "n_head": 12, "n_embd": 384, "n_positions": 512, "vocab_size": 30522}
    special = {"bos_token_id": 101, "eos_token_id": 102, "pad_token_id": 0}
    save(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **special)), folder)
    save_tokenizer(folder)


def encoder_decoder(folder: Path) -> None:
    """Save a T5 with t5-small's architecture."""
    transformers = library()
    special = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 102}
    save(transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=30522, **special)), folder)
    save_tokenizer(folder)


def save_tokenizer(folder: Path) -> None:
    """Save MiniLM's tokenizer with an end-of-text token for the generators."""
    special = {"eos_token": "[SEP]"}
    tokenizer = library().AutoTokenizer.from_pretrained(model_dir(), local_files_only=True, **special)
    tokenizer.save_pretrained(folder)


def save(model: Any, folder: Path) -> None:
    """Save the model in evaluation mode."""
    model.eval().save_pretrained(folder)


VIT: Final = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
"""The sizes of vit-tiny."""


def vision(name: str, processor: str, folder: Path, *, config: Mapping[str, Any], size: Mapping[str, int]) -> None:
    """Save a vision model and its image processor.

    Args:
        name: the model's class in transformers.
        processor: the class of its image processor.
        folder: the folder to write.
        config: the model's settings.
        size: the size to which images are resized.
    """
    transformers = library()
    kind = getattr(transformers, f"{name.partition('For')[0].removesuffix('Model')}Config")
    save(getattr(transformers, name)(kind(**config)), folder)
    getattr(transformers, processor)(size=size).save_pretrained(folder)


def speech(name: str, folder: Path, **config: Any) -> None:
    """Save a Wav2Vec2 with 4 layers and width 256 whose vocabulary is single letters."""
    transformers = library()
    letters = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefghijklmnopqrstuvwxyz'"]
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    shape = transformers.Wav2Vec2Config(vocab_size=len(letters), feat_extract_norm="layer", **sizes, **config)
    save(getattr(transformers, name)(shape), folder)
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(json.dumps({letter: index for index, letter in enumerate(letters)}), encoding="utf-8")
    transformers.Wav2Vec2CTCTokenizer(str(vocabulary)).save_pretrained(folder)


def network(folder: Path) -> None:
    """Save a tabular model as TorchScript, with 64 inputs and 8 outputs."""
    torch: Any = importlib.import_module("torch")
    layers = [torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    traced = torch.jit.trace(torch.nn.Sequential(*layers, torch.nn.Linear(256, 8)).eval(), torch.zeros(1, 64))
    folder.mkdir(parents=True, exist_ok=True)
    traced.save(str(folder / "model.pt"))


_SQUARE: Final = {"height": PIXELS, "width": PIXELS}
_YOLOS: Final = {**VIT, "image_size": [PIXELS, PIXELS], "num_detection_tokens": 50}
_SEGFORMER: Final = {"num_labels": 20}

BUILDS: Final[Mapping[str, tuple[str, Build]]] = {
    "text-embedding": ("MiniLM", partial(encoder, "BertModel")),
    "text-classification": ("MiniLM", partial(encoder, "BertForSequenceClassification", num_labels=5)),
    "token-classification": ("MiniLM", partial(encoder, "BertForTokenClassification", num_labels=9)),
    "question-answering": ("MiniLM", partial(encoder, "BertForQuestionAnswering")),
    "fill-mask": ("MiniLM", partial(encoder, "BertForMaskedLM")),
    "zero-shot-classification": ("MiniLM", partial(encoder, "BertForSequenceClassification", id2label=LABELS)),
    "reranking": ("MiniLM", partial(encoder, "BertForSequenceClassification", num_labels=1)),
    "summarization": ("T5 small", encoder_decoder),
    "translation": ("T5 small", encoder_decoder),
    "text-generation": ("GPT-2, 6 layers", decoder),
    "image-classification": (
        "ViT tiny",
        partial(vision, "ViTForImageClassification", "ViTImageProcessor", config=VIT, size=_SQUARE),
    ),
    "image-embedding": ("ViT tiny", partial(vision, "ViTModel", "ViTImageProcessor", config=VIT, size=_SQUARE)),
    "object-detection": (
        "YOLOS tiny",
        partial(vision, "YolosForObjectDetection", "YolosImageProcessor", config=_YOLOS, size=_SQUARE),
    ),
    "image-segmentation": (
        "SegFormer B0",
        partial(vision, "SegformerForSemanticSegmentation", "SegformerImageProcessor", config=_SEGFORMER, size=_SQUARE),
    ),
    "speech-recognition": ("Wav2Vec2, 4 layers", partial(speech, "Wav2Vec2ForCTC")),
    "audio-classification": ("Wav2Vec2, 4 layers", partial(speech, "Wav2Vec2ForSequenceClassification", num_labels=5)),
    "tensor": ("3 linear layers", network),
}
"""By task: the model's description, and the function that saves it."""
