"""Reading the JSON files that sentence-transformers puts into a model folder, without passing over what they say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from tsbatch.errors import LoadError
from tsbatch.tasks.shared.task_handler import read_json


def read_mapping(path: Path) -> Mapping[str, Any]:
    """Read a JSON object; empty if there is no such file, or it holds something else.

    Raises:
        LoadError: the file is broken.
    """
    found = read_json(path)
    return found if isinstance(found, Mapping) else {}


def check_keys(
    config: Mapping[str, Any], where: str, *, known: Collection[str], fixed: Mapping[str, Any], what: str
) -> None:
    """Refuse what tsbatch does not know, since it may change the answers.

    Args:
        config: the object to check.
        where: the name of its file.
        known: keys that may have any value.
        fixed: keys that may have only this value, or None.
        what: the plural noun for the answers.

    Raises:
        LoadError: there is an unknown key, or a key of ``fixed`` has another value.
    """
    for key, value in config.items():
        if key not in known and not (key in fixed and (value is None or value == fixed[key])):
            expected = f"expected {fixed[key]!r}" if key in fixed else "tsbatch does not know this key"
            raise LoadError(f"{where}: {key}: {value!r:.60}: {expected}, and it may change the {what}")


def make_activation(path: str) -> torch.nn.Module | None:
    """Make the activation that a configuration names, such as ``torch.nn.modules.activation.Tanh``.

    Returns:
        None if it is not a module of torch.nn, or cannot be made without arguments.
    """
    made = getattr(torch.nn, path.rpartition(".")[2], None) if path.startswith("torch.nn.") else None
    try:
        return made() if isinstance(made, type) and issubclass(made, torch.nn.Module) else None
    except TypeError:
        return None
