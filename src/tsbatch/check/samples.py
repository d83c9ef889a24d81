"""The requests that a check asks: a file with one JSON value a line, or a folder with one request a file."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Iterator
from pathlib import Path

from tsbatch.errors import UsageError

JSON = "application/json"
BINARY = "application/octet-stream"
MOST = 1000
"""Samples of one check."""

Sample = dict[str, str]
"""``name``, ``body`` (base64) and ``content_type``."""


def read(path: Path) -> list[Sample]:
    """The samples of a file or folder.

    Args:
        path: a file with one JSON value a line, as ``tsbatch run --data`` takes it; or a folder, whose files are posted
            as they are, each with the content type that its ending says.

    Raises:
        UsageError: there is no such path, a line is no JSON, or nothing is in it.
    """
    if not path.exists():
        raise UsageError(
            f"--data {path}: no such file or folder; expected a file with one JSON value a line, or a folder with "
            "one request a file"
        )
    found = list(_of_folder(path) if path.is_dir() else _of_lines(path))
    if not found:
        raise UsageError(f"--data {path}: no sample is in it; expected at least one")
    return found[:MOST]


def _of_folder(folder: Path) -> Iterator[Sample]:
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            yield sample(file.name, file.read_bytes(), mimetypes.guess_type(file.name)[0] or BINARY)


def _of_lines(file: Path) -> Iterator[Sample]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                json.loads(line)
            except ValueError as error:
                raise UsageError(
                    f"--data {file}, line {number}: not JSON: {error}; expected one value a line"
                ) from None
            yield sample(f"line {number}", line.strip(), JSON)


def sample(name: str, body: bytes, content_type: str) -> Sample:
    """One request, in a form that travels as JSON."""
    return {"name": name, "body": base64.b64encode(body).decode("ascii"), "content_type": content_type}
