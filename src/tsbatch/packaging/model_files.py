"""The model's own files, as they go into an archive."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

from tsbatch.archive import model_folder
from tsbatch.errors import UsageError
from tsbatch.models.file_kinds import STATE_DICTS
from tsbatch.packaging.task_requirements import needs
from tsbatch.packaging.transformers_folder import check_transformers


def model_files(model: Path | None, task: str | None) -> tuple[dict[str, Path], list[str]]:
    """The model's files by their path in the archive, and those that are left out.

    Args:
        model: a folder; for an own handler also a single file, or None.
        task: the ready-made task; a transformers folder must be complete for it.

    Raises:
        UsageError: it is not there, empty, or lacks what the task needs.
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
    """The files beside an ONNX graph that it keeps its weights in."""
    beside = [path for path in model.parent.iterdir() if path.is_file() and path.name.startswith(model.stem)]
    if not model.stat().st_size:
        return {}
    with model.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as graph:
        return {path.name: path for path in beside if path != model and graph.find(path.name.encode()) >= 0}


def serialized_name(model: Path | None, files: Mapping[str, Path], model_file: Path | None) -> str | None:
    """The manifest's ``serializedFile``: the single file, or the weights that belong to ``model_file``.

    Raises:
        UsageError: the folder holds no weights for the model file, or several.
    """
    if model is None:
        return None
    if model.is_file():
        return model.name
    if model_file is None:
        return None
    weights = [name for name in files if "/" not in name and Path(name).suffix in STATE_DICTS]
    if len(weights) != 1:
        got = ", ".join(weights) or "none"
        raise UsageError(f"--model {model}: expected one file of weights for --model-file, got {got}; name it instead")
    return weights[0]
