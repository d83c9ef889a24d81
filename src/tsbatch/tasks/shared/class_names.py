"""The names of a model's classes, from the archive's labels or the model's config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsbatch.errors import LoadError
from tsbatch.tasks.shared.task_handler import read_json

FILE = "index_to_name.json"
"""The name that TorchServe's own handlers use (ts/torch_handler/vision_handler.py)."""


def class_names(count: int, *, folder: Path, aux: Mapping[str, Any], config: Any = None) -> list[str]:
    """The name of each of ``count`` classes.

    The names come from ``aux["labels"]``, else from ``index_to_name.json``, else from the model config's ``id2label``.
    Without any of them they are LABEL_0, LABEL_1 ..., as in transformers.

    Args:
        count: the number of classes.
        folder: the unpacked archive.
        aux: the handler's auxiliary files.
        config: a transformers config.

    Raises:
        LoadError: the labels are neither a list nor a mapping of numbers to names, or their number is wrong.
    """
    if count < 1:
        raise LoadError("config.json: id2label: the model has no class; name the classes that it was trained for")
    where, given = "the auxiliary file 'labels'", aux.get("labels")
    if given is None:
        where, given = FILE, read_json(folder / FILE)
    if given is None:
        where, given = "id2label of config.json", getattr(config, "id2label", None)
    if not given:
        return [f"LABEL_{index}" for index in range(count)]
    named = _by_index(given, where)
    if sorted(named) != list(range(count)):
        raise LoadError(f"{where}: has labels for {_brief(named)}, and the model has {count} classes, 0 to {count - 1}")
    return [named[index] for index in range(count)]


def _by_index(given: Any, where: str) -> dict[int, str]:
    if isinstance(given, str):
        given = given.splitlines()
    try:
        pairs = given.items() if isinstance(given, Mapping) else enumerate(given)
        # ImageNet's list has two names for each class: ["n01440764", "tench"].
        named = {int(index): label[-1] if isinstance(label, list) and label else label for index, label in pairs}
        if all(isinstance(label, str) for label in named.values()):
            return named
    except (TypeError, ValueError):
        pass
    expected = '["cat", "dog"] or {"0": "cat", "1": "dog"}'
    raise LoadError(f"{where}: cannot be read as labels; expected {expected}")


def _brief(named: Mapping[int, str]) -> str:
    if len(named) < 2:
        return f"class {min(named)} alone" if named else "no class"
    return f"{len(named)} classes, {min(named)} to {max(named)}"
