"""Detect what a transformers model folder lacks before it is packaged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from tsbatch.errors import UsageError
from tsbatch.packaging.task_requirements import needs

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "bpe.codes",
)

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Of transformers 4 and 5."""


def check_transformers(folder: Path, names: Mapping[str, Path], task: str) -> None:
    """Says what a transformers folder lacks, before a worker finds out.

    Args:
        folder: for the message.
        names: what goes into the archive.
        task: a ready-made task.

    Raises:
        UsageError: config.json, weights, one of the weights' shards, the tokenizer or the processor is missing.
    """
    wanted = needs(task)
    if not wanted.transformers:
        return
    if "config.json" not in names:
        raise UsageError(
            f"{folder}: no config.json{_old_layout(names)}; --task {task} needs a transformers folder: config.json,"
            " model.safetensors and the tokenizer's files, as model.save_pretrained() and tokenizer.save_pretrained()"
            " write them"
        )
    _check_weights(folder, names)
    if wanted.tokenizer and names.keys().isdisjoint(TOKENIZER_FILES):
        raise UsageError(
            f"{folder}: no tokenizer; --task {task} needs tokenizer.json, or one of "
            f"{', '.join(TOKENIZER_FILES[1:])}; tokenizer.save_pretrained() writes them"
        )
    if wanted.processor and names.keys().isdisjoint(PROCESSOR_FILES):
        raise UsageError(
            f"{folder}: no preprocessor_config.json; --task {task} needs it beside the model; "
            "processor.save_pretrained() writes it"
        )


def _old_layout(names: Mapping[str, Path]) -> str:
    """Folders of sentence-transformers before 2.0 have the transformer one level down."""
    inner = "0_Transformer/config.json"
    return f" (only {inner}; load and save the model once with sentence-transformers 2.0 or later)" * (inner in names)


def _check_weights(folder: Path, names: Mapping[str, Path]) -> None:
    at_top = [name for name in names if "/" not in name]
    if not any(name.endswith(".safetensors") or fnmatchcase(name, "pytorch_model*.bin") for name in at_top):
        raise UsageError(f"{folder}: no weights; expected model.safetensors, as model.save_pretrained() writes it")
    for index in (name for name in at_top if name.endswith((".safetensors.index.json", ".bin.index.json"))):
        try:
            shards = set(json.loads(names[index].read_bytes())["weight_map"].values())
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UsageError(f"{folder / index}: not an index of weights ('weight_map' is missing)") from None
        missing = sorted(str(shard) for shard in shards if shard not in names)
        if missing:
            raise UsageError(f"{folder / index}: names weights that are not there: {', '.join(missing)}")
