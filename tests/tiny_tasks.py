"""For each ready-made task a tiny model, eight good requests that differ, and one that is broken."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests import tiny_images, varied_images, varied_sounds
from tests.generators import save_generator
from tests.tiny_audio import save_waveform_model
from tests.tiny_text import save_model
from tests.varied import TEXTS

JSON = {"Content-Type": "application/json"}
BYTES = {"Content-Type": "application/octet-stream"}
ENTAILMENT = {0: "contradiction", 1: "neutral", 2: "entailment"}
IDS = {name: place for place, name in ENTAILMENT.items()}
CHOSEN = [TEXTS[place] for place in (0, 1, 2, 4, 18, 22, 26, 40)]
HALF = b'{"inputs": "half a text'
NO_TEXT = {"inputs": {"no": "text"}}
GREEDY = {"do_sample": False, "max_new_tokens": 6}
RATE = 16_000


@dataclass(frozen=True)
class TinyTask:
    """One task.

    Attributes:
        save: writes its model folder.
        good: bodies, bytes or JSON.
        broken: a body that the task cannot read.
        headers: of all of them.
    """

    save: Callable[[Path], object]
    good: list[Any]
    broken: Any
    headers: Mapping[str, str] = field(default_factory=lambda: JSON)


def _encoder(name: str, good: list[Any], broken: Any, **config: Any) -> TinyTask:
    return TinyTask(partial(save_model, name=name, **config), good, broken)


def _generator(name: str, broken: Any, **config: Any) -> TinyTask:
    return TinyTask(partial(save_generator, name=name, **config), _texts(**GREEDY), broken)


def _texts(**parameters: Any) -> list[Any]:
    return [{"inputs": text, **({"parameters": parameters} if parameters else {})} for text in CHOSEN]


def _images(save: Callable[[Path], object], **parameters: Any) -> TinyTask:
    """Files as they are; as base64 in JSON where there are parameters, which a file has no place for."""
    files = [varied_images.encoded(varied_images.picture(seed, 40 + seed), "PNG") for seed in range(8)]
    broken = files[0][: len(files[0]) // 2]
    if not parameters:
        return TinyTask(save, list(files), broken, BYTES)
    bodies = [{"inputs": b64encode(file).decode(), "parameters": parameters} for file in [*files, broken]]
    return TinyTask(save, bodies[:-1], bodies[-1])


def _sounds(name: str, **config: Any) -> TinyTask:
    files = [varied_sounds.encoded(varied_sounds.speech(0.6 + 0.1 * seed, RATE, seed=seed), RATE) for seed in range(8)]
    save = partial(save_waveform_model, name=name, feat_extract_norm="layer", **config)
    return TinyTask(save, files, b"RIFF, and then no sound at all", BYTES)


def _save_network(folder: Path) -> None:
    """TorchScript: 4 numbers in, 3 out."""
    import torch

    torch.manual_seed(0)
    torch.jit.script(torch.nn.Linear(4, 3).eval()).save(str(folder / "model.pt"))


TINY: dict[str, TinyTask] = {
    "text-embedding": _encoder("BertModel", _texts(), NO_TEXT),
    "text-classification": _encoder("BertForSequenceClassification", _texts(top_k=2), HALF, num_labels=3),
    "token-classification": _encoder("BertForTokenClassification", _texts(), NO_TEXT, num_labels=4),
    "question-answering": _encoder(
        "BertForQuestionAnswering",
        [{"inputs": {"question": "What is it?", "context": f"{text} It is what it is."}} for text in CHOSEN],
        {"inputs": {"question": "And the context?"}},
    ),
    "fill-mask": _encoder(
        "BertForMaskedLM", [{"inputs": f"{text} [MASK]"} for text in CHOSEN], {"inputs": "nothing is masked"}
    ),
    "zero-shot-classification": _encoder(
        "BertForSequenceClassification",
        _texts(candidate_labels=["food", "film"]),
        {"inputs": "no labels"},
        id2label=ENTAILMENT,
        label2id=IDS,
    ),
    "reranking": _encoder(
        "BertForSequenceClassification",
        [{"inputs": {"query": text, "texts": CHOSEN[:4]}} for text in CHOSEN],
        {"inputs": {"query": "no passages"}},
        num_labels=1,
    ),
    "summarization": _generator("BartForConditionalGeneration", NO_TEXT),
    "translation": _generator("T5ForConditionalGeneration", HALF),
    "text-generation": _generator("LlamaForCausalLM", {"inputs": "x", "parameters": {"max_new_tokens": -1}}),
    "image-classification": _images(tiny_images.vit),
    "image-embedding": _images(partial(tiny_images.vit, name="ViTModel")),
    "object-detection": _images(tiny_images.yolos, threshold=0.1),
    "image-segmentation": _images(tiny_images.segformer),
    "speech-recognition": _sounds("Wav2Vec2ForCTC"),
    "audio-classification": _sounds("Wav2Vec2ForSequenceClassification", head=20.0, num_labels=4),
    "tensor": TinyTask(
        _save_network, [{"inputs": [[number, 1, 0.5, -number]]} for number in range(8)], {"inputs": [["no", "number"]]}
    ),
}
