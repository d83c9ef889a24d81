"""Select a model's files for an archive, and detect missing ones."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from tsbatch.archive import model_folder
from tsbatch.errors import UsageError
from tsbatch.models.file_kinds import STATE_DICTS
from tsbatch.packaging.requirements import needs

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
"""The names in transformers 4 and 5."""

OLD_LAYOUT = "0_Transformer/config.json"
"""Folders of sentence-transformers before 2.0 have the transformer one level down."""


def model_files(model: Path | None, task: str | None) -> tuple[dict[str, Path], list[str]]:
    """Return the model's files by their path in the archive, and the names of the files that are skipped.

    Args:
        model: a folder; for your own handler also a single file, or None.
        task: the ready-made task; a transformers folder must be complete for it.

    Raises:
        UsageError: the model does not exist, is empty, or lacks what the task needs.
    """
    if model is None or not model.is_dir():
        return _single_file(model, task), []
    found = model_folder.walk(model)
    files = {name: path for name, path in found.items() if not model_folder.clutter(name)}
    for name in model_folder.not_needed(files) if task else []:
        del files[name]
    if not files:
        raise UsageError(f"--model {model}: the folder is empty; expected the model's files")
    if task:
        check_transformers(model, files, task)
    return files, [name for name in found if name not in files]


def _single_file(model: Path | None, task: str | None) -> dict[str, Path]:
    if model is not None and not model.exists():
        raise UsageError(f"--model {model}: no such folder")
    if task and needs(task).transformers:
        got = f"{model} is a file" if model else "--model is missing"
        raise UsageError(f"{got}; --task {task} needs --model FOLDER, as save_pretrained() writes it")
    if model is None:
        return {}
    return {model.name: model, **(_weights_of_onnx(model) if model.suffix == ".onnx" else {})}


def _weights_of_onnx(model: Path) -> dict[str, Path]:
    """Return the files next to an ONNX graph that the graph keeps its weights in."""
    beside = [path for path in model.parent.iterdir() if path.is_file() and path.name.startswith(model.stem)]
    if not model.stat().st_size:
        return {}
    with model.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as graph:
        return {path.name: path for path in beside if path != model and graph.find(path.name.encode()) >= 0}


def serialized_name(model: Path | None, files: Mapping[str, Path], model_file: Path | None) -> str | None:
    """Return the manifest's ``serializedFile``: the single file, or the weights that belong to ``model_file``.

    Raises:
        UsageError: the folder has no weights for the model file, or several.
    """
    if model is not None and model.is_file():
        return model.name
    if model is None or model_file is None:
        return None
    weights = [name for name in files if "/" not in name and Path(name).suffix in STATE_DICTS]
    if len(weights) != 1:
        got = ", ".join(weights) or "none"
        raise UsageError(
            f"--model {model}: expected one file of weights for --model-file, got {got}; give the file instead of the"
            " folder"
        )
    return weights[0]


def check_transformers(folder: Path, names: Mapping[str, Path], task: str) -> None:
    """Check that a transformers folder is complete, so that loading does not fail later in a worker.

    Args:
        folder: the folder, for the message.
        names: the files that go into the archive.
        task: a ready-made task.

    Raises:
        UsageError: config.json, weights, one of the weights' shards, the tokenizer or the processor is missing.
    """
    wanted = needs(task)
    if not wanted.transformers:
        return
    if task == "text-embedding" and _without_transformer(names):
        return  # the library loads these, and its own message says what is missing
    if "config.json" not in names:
        old = f" (only {OLD_LAYOUT}; load and save the model once with sentence-transformers 2.0 or later)"
        raise UsageError(
            f"{folder}: no config.json{old * (OLD_LAYOUT in names)}; --task {task} needs a transformers folder:"
            " config.json, model.safetensors and the tokenizer's files, as model.save_pretrained() and"
            " tokenizer.save_pretrained() write them"
        )
    _check_weights(folder, names)
    if wanted.tokenizer and names.keys().isdisjoint(TOKENIZER_FILES):
        raise UsageError(
            f"{folder}: no tokenizer; --task {task} needs tokenizer.json, or one of "
            f"{', '.join(TOKENIZER_FILES[1:])}; tokenizer.save_pretrained() writes them"
        )
    if wanted.processor and names.keys().isdisjoint(PROCESSOR_FILES):
        raise UsageError(
            f"{folder}: no preprocessor_config.json; --task {task} needs it in the model folder; "
            "processor.save_pretrained() writes it"
        )


def _without_transformer(names: Mapping[str, Path]) -> bool:
    """Whether sentence-transformers saved a model with no transformer in the folder itself, as StaticEmbedding."""
    try:
        first = json.loads(names["modules.json"].read_bytes())[0]["type"]
    except (KeyError, IndexError, TypeError, ValueError):
        return False
    return str(first).startswith("sentence_transformers.") and not str(first).endswith(".Transformer")


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
            raise UsageError(f"{folder / index}: lists weight files that are missing: {', '.join(missing)}")
