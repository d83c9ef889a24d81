"""Labels as TorchServe's own handlers read them: ``index_to_name.json``, from a list, a mapping or lines of text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tsbatch.errors import UsageError

LABELS_NAME = "index_to_name.json"
EXPECTED = 'expected a JSON list ["cat", "dog"], a mapping {"0": "cat", "1": "dog"}, or a text file with a label a line'


def index_to_name(path: Path) -> bytes:
    """The labels of ``path`` as ``{"0": label, …}``.

    Raises:
        UsageError: it cannot be read, is none of these, or an index is missing.
    """
    if not path.is_file():
        raise UsageError(f"--labels {path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix.lower() == ".json" else text.splitlines()
    except ValueError as error:
        raise UsageError(f"--labels {path}: cannot be read ({error}); {EXPECTED}") from None
    labels = _by_index(path, found)
    if missing := sorted(set(range(len(labels))) - labels.keys()):
        raise UsageError(f"--labels {path}: has {len(labels)} labels and none for index {missing[0]}")
    return json.dumps({str(index): labels[index] for index in sorted(labels)}, indent=1).encode("ascii")


def _by_index(path: Path, found: Any) -> dict[int, Any]:
    if isinstance(found, list):
        found = dict(enumerate(found))
    if not isinstance(found, dict) or not found:
        raise UsageError(f"--labels {path}: {EXPECTED}")
    try:
        return {int(index): _label(label) for index, label in found.items()}
    except ValueError:
        raise UsageError(f"--labels {path}: {EXPECTED}") from None


def _label(value: Any) -> Any:
    # ImageNet's list has two names for each: ["n01440764", "tench"].
    if not isinstance(value, (str, list)):
        raise ValueError(value)
    return value
