"""Read the requests that a check sends: a file with one JSON value per line, or a folder with one request per file."""

from __future__ import annotations

import base64
import json
import mimetypes
from collections.abc import Iterator
from pathlib import Path

from tsbatch.errors import UsageError

JSON = "application/json"
BINARY = "application/octet-stream"
MAX_SAMPLES = 1000

Sample = dict[str, str]
"""``name``, ``body`` (base64) and ``content_type``."""


def read(path: Path) -> list[Sample]:
    """Read the samples of a file or folder.

    Args:
        path: a file with one JSON value per line, as for ``tsbatch run --data``; or a folder, whose files are posted
            unchanged, each with the content type of its suffix.

    Raises:
        UsageError: there is no such path, a line is not JSON, or there is no sample.
    """
    if not path.exists():
        raise UsageError(
            f"--data {path}: no such file or folder; expected a file with one JSON value per line, or a folder with "
            "one request per file"
        )
    found = list(_of_folder(path) if path.is_dir() else _of_lines(path))
    if not found:
        raise UsageError(f"--data {path}: contains no samples; expected at least one")
    return found[:MAX_SAMPLES]


def _of_folder(folder: Path) -> Iterator[Sample]:
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            yield sample(file.name, file.read_bytes(), mimetypes.guess_type(file.name)[0] or BINARY)


def _of_lines(file: Path) -> Iterator[Sample]:
    for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            json.loads(line)
        except ValueError as error:
            raise UsageError(f"--data {file}, line {number}: not JSON: {error}; expected one value per line") from None
        yield sample(f"line {number}", line.strip(), JSON)


def sample(name: str, body: bytes, content_type: str) -> Sample:
    """Return a request in a form that can be sent as JSON."""
    return {"name": name, "body": base64.b64encode(body).decode("ascii"), "content_type": content_type}
