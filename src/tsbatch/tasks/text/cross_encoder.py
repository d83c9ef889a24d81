"""The files that sentence-transformers' CrossEncoder puts beside a sequence classifier: activation, prompt, length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tsbatch.errors import LoadError
from tsbatch.tasks.shared.task_handler import read_json
from tsbatch.tasks.text.sentence_files import check_keys, make_activation, read_mapping

LIBRARY_FILE: Final = "config_sentence_transformers.json"
SENTENCE_FILE: Final = "sentence_bert_config.json"
_LIBRARY_KEYS: Final = frozenset(
    {"__version__", "activation_fn", "default_prompt_name", "prompts", "requirements", "similarity_fn_name"}
)
_LIBRARY_ONLY: Final[Mapping[str, Any]] = {"model_type": "CrossEncoder", "keep_in_fp32_modules": []}
_SENTENCE_KEYS: Final = frozenset({"max_seq_length", "do_lower_case"})
_SENTENCE_ONLY: Final[Mapping[str, Any]] = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
    "unpad_inputs": None,
    "processing_kwargs": {},
}


@dataclass(frozen=True, slots=True)
class CrossEncoderSettings:
    """What a cross-encoder's folder says beside the model.

    Attributes:
        activation: turns logits (n, 1) into scores.
        prompt: put before the query.
        max_length: tokens of a pair; None for the tokenizer's limit.
        lower: convert texts to lower case.
    """

    activation: torch.nn.Module
    prompt: str = ""
    max_length: int | None = None
    lower: bool = False


def read_cross_encoder(model_dir: Path) -> CrossEncoderSettings:
    """Read the settings by which ``CrossEncoder.predict`` differs from the plain model; sigmoid without any.

    Raises:
        LoadError: there is a module or a key that tsbatch does not know, and that may change the scores.
    """
    config = read_mapping(model_dir / "config.json")
    modules = read_json(model_dir / "modules.json")
    library, sentence = read_mapping(model_dir / LIBRARY_FILE), read_mapping(model_dir / SENTENCE_FILE)
    if modules is None:  # then the library does not read these two
        if library.get("default_prompt_name") or library.get("activation_fn"):
            raise LoadError(f"{LIBRARY_FILE}: it has no effect without modules.json; pack the whole folder")
        library, sentence = {}, {}
    else:
        _check_modules(modules)
        check_keys(library, LIBRARY_FILE, known=_LIBRARY_KEYS, fixed=_LIBRARY_ONLY, what="scores")
        check_keys(sentence, SENTENCE_FILE, known=_SENTENCE_KEYS, fixed=_SENTENCE_ONLY, what="scores")
    where, path = LIBRARY_FILE, library.get("activation_fn")
    if path is None:
        where, saved = "config.json", config.get("sentence_transformers")
        older = config.get("sbert_ce_default_activation_function")
        path = saved["activation_fn"] if isinstance(saved, Mapping) and "activation_fn" in saved else older
    return CrossEncoderSettings(
        activation=torch.nn.Sigmoid() if path is None else _activation(str(path), where),
        prompt=_default_prompt(library),
        max_length=sentence.get("max_seq_length"),
        lower=bool(sentence.get("do_lower_case")),
    )


def _check_modules(modules: Any) -> None:
    kinds = [str(one.get("type", "")) if isinstance(one, Mapping) else "" for one in modules]
    plain = [kind.startswith("sentence_transformers.") and kind.endswith(".Transformer") for kind in kinds]
    if plain != [True]:
        others = [kind for kind, own in zip(kinds, plain, strict=True) if not own] or kinds
        raise LoadError(
            "modules.json: reranking supports a cross-encoder of one Transformer, and not "
            f"{', '.join(others)}; write a custom handler"
        )


def _default_prompt(library: Mapping[str, Any]) -> str:
    name, prompts = library.get("default_prompt_name"), library.get("prompts") or {}
    if name is None:
        return ""
    if name not in prompts:
        raise LoadError(f"{LIBRARY_FILE}: default_prompt_name: {name!r} is not one of the prompts")
    return str(prompts[name])


def _activation(path: str, where: str) -> torch.nn.Module:
    activation = make_activation(path)
    if activation is None or any(True for _ in activation.parameters()):
        raise LoadError(f"{where}: activation_fn: {path} is no activation of torch.nn; write a custom handler")
    return activation.eval()
