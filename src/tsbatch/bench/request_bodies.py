"""Read request bodies and their content types from a file or folder.

=======================  ==========================================================================================
``.jsonl .ndjson``       each line is a JSON body
``.json``                a list is one body for each element, anything else is one body
``.csv .tsv``            each row below the heading is ``{"inputs": {column: cell}}``, or ``{"inputs": cell}`` when
                         there is only one column; cells that are numbers are numbers
a folder                 each file in it is a body, with the content type of its name
image, audio, ``.bin``   one body
anything else            each line is a body of ``text/plain``
=======================  ==========================================================================================
"""

from __future__ import annotations

import csv
import mimetypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tsbatch.errors import UsageError

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
BYTES: Final = "application/octet-stream"
VALUE_KEYS: Final = ("inputs", "instances", "input", "text", "data")
WHOLE: Final = ("image/", "audio/", "video/")


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    Attributes:
        content: the bytes.
        content_type: their type.
        items: number of model inputs in it.
    """

    content: bytes
    content_type: str
    items: int = 1


def read_bodies(path: Path, content_type: str | None = None) -> list[Body]:
    """Read all bodies of a file or folder, in order; files of a folder in alphabetical order.

    Args:
        path: the file or folder.
        content_type: replaces the detected content type.

    Raises:
        UsageError: it has no bodies, or a body is invalid.
        OSError: it cannot be read.
    """
    bodies = list(_folder(path) if path.is_dir() else _file(path))
    if not bodies:
        raise UsageError(f"{path} contains nothing to send")
    if content_type is None:
        return bodies
    return [Body(body.content, content_type, body.items) for body in bodies]


def _folder(path: Path) -> Iterator[Body]:
    for file in sorted(path.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            content = file.read_bytes()
            kind = _type_of(file)
            yield Body(content, kind, _count(_loads(content, str(file))) if kind == JSON else 1)


def _file(path: Path) -> Iterator[Body]:
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        yield from _rows(path, "\t" if suffix == ".tsv" else ",")
    elif suffix in (".jsonl", ".ndjson"):
        yield from _json_lines(path)
    elif suffix == ".json":
        yield from _json(path)
    elif suffix == ".bin" or _type_of(path).startswith(WHOLE):
        yield Body(path.read_bytes(), _type_of(path))
    else:
        yield from (Body(line, TEXT) for line in _lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    lines = (line.strip() for line in path.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines())
    return filter(None, lines)


def _json_lines(path: Path) -> Iterator[Body]:
    for number, line in enumerate(_lines(path), 1):
        yield Body(line, JSON, _count(_loads(line, f"{path}, request {number}")))


def _json(path: Path) -> Iterator[Body]:
    value = _loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), str(path))
    for one in value if isinstance(value, list) else [value]:
        yield Body(orjson.dumps(one), JSON, _count(one))


def _rows(path: Path, delimiter: str) -> Iterator[Body]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    raise UsageError(f"{path}, line {reader.line_num}: the number of cells differs from the heading")
                cells = {name: _cell(text) for name, text in row.items()}
                inputs = cells if len(cells) > 1 else next(iter(cells.values()))
                yield Body(orjson.dumps({"inputs": inputs}), JSON)
        except (csv.Error, UnicodeDecodeError) as error:
            raise UsageError(f"{path}, line {reader.line_num + 1}: {error}") from None


def _cell(text: str) -> str | int | float:
    try:
        number = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    # Other JSON (true, null, a list) is text.
    return number if type(number) in (int, float) else text


def _loads(content: bytes, where: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{where} is not JSON: {error}") from None


def _count(value: Any) -> int:
    if isinstance(value, dict):
        value = next((value[key] for key in VALUE_KEYS if key in value), None)
    # A list of numbers is one vector.
    several = isinstance(value, list) and value and not isinstance(value[0], (int, float))
    return len(value) if several else 1


def _type_of(path: Path) -> str:
    return mimetypes.guess_type(path.name)[0] or BYTES
