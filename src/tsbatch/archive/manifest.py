"""``MAR-INF/MANIFEST.json``: the same as torch-model-archiver's, except for the time."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsbatch.archive.model_config import CONFIG_NAME
from tsbatch.errors import UsageError

MANIFEST_NAME = "MAR-INF/MANIFEST.json"
NAME_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_\-.]*")
"""TorchServe's rule for a model name (model_packaging_utils.py); a version goes into URLs as well."""

CREATED_ON = "01/01/1980 00:00:00"
"""The earliest time a zip can store; the real time would make every archive different."""


def check_identity(name: str, version: str) -> None:
    """Check a name and a version against TorchServe's rule.

    Raises:
        UsageError: TorchServe does not accept one of them; the message names the option.
    """
    for option, value in (("--name", name), ("--version", version)):
        if not NAME_RULE.fullmatch(value):
            raise UsageError(
                f"{option} {value!r}: TorchServe accepts letters, digits, '_', '-' and '.'; the first must be a letter"
                " or a digit"
            )


def manifest(
    name: str,
    version: str,
    handler: str,
    *,
    serialized: str | None = None,
    model_file: str | None = None,
    requirements: str | None = None,
) -> bytes:
    """Return the manifest of an archive, from the names of files in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its version.py leaves a file open
        from model_archiver.manifest_components.manifest import Manifest, RuntimeType
        from model_archiver.manifest_components.model import Model

    model = Model(
        model_name=name,
        serialized_file=serialized,
        handler=handler,
        model_file=model_file,
        model_version=version,
        requirements_file=requirements,
        config_file=CONFIG_NAME,
    )
    document = Manifest(RuntimeType.PYTHON, model).manifest_dict
    return json.dumps({**document, "createdOn": CREATED_ON}, indent=2).encode("ascii")


def with_model(text: bytes, changes: Mapping[str, str]) -> bytes:
    """Return a manifest with other values in its section ``model``."""
    whole = json.loads(text)
    return json.dumps({**whole, "model": {**whole["model"], **changes}}, indent=2).encode("ascii")


def model_section(files: Mapping[str, Path | bytes]) -> dict[str, str]:
    """Return the section ``model`` of the manifest among an archive's files."""
    text = files[MANIFEST_NAME]
    section: dict[str, str] = json.loads(text if isinstance(text, bytes) else text.read_bytes())["model"]
    return section


def json_object(text: bytes) -> dict[str, Any]:
    """Return a JSON object; empty if the text is something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
