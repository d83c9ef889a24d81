"""Write class labels as TorchServe's own handlers read them (``index_to_name.json``)."""

from __future__ import annotations

import json
from pathlib import Path

from tsbatch.errors import UsageError

LABELS_NAME = "index_to_name.json"
EXPECTED = 'expected a JSON list ["cat", "dog"], a mapping {"0": "cat", "1": "dog"}, or one label per line'


def index_to_name(path: Path) -> bytes:
    """Return the labels in ``path`` as ``{"0": label, …}``.

    Raises:
        UsageError: the file cannot be read, has another format, or lacks an index.
    """
    if not path.is_file():
        raise UsageError(f"--labels {path}: no such file")
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix.lower() == ".json" else text.splitlines()
    except ValueError as error:
        raise UsageError(f"--labels {path}: cannot be read ({error}); {EXPECTED}") from None
    if isinstance(found, list):
        found = dict(enumerate(found))
    # ImageNet's list has two names for each class: ["n01440764", "tench"].
    if not isinstance(found, dict) or not found or not all(isinstance(label, str | list) for label in found.values()):
        raise UsageError(f"--labels {path}: {EXPECTED}")
    try:
        labels = {int(index): label for index, label in found.items()}
    except ValueError:
        raise UsageError(f"--labels {path}: {EXPECTED}") from None
    if missing := sorted(set(range(len(labels))) - labels.keys()):
        raise UsageError(f"--labels {path}: has {len(labels)} labels but none for index {missing[0]}")
    return json.dumps({str(index): labels[index] for index in sorted(labels)}, indent=1).encode("ascii")
