"""Verify that an archive still contains what was packed, and compare two archives.

The hashes in ``MAR-INF/tsbatch.json`` reveal later changes: a changed byte, a file added, dropped or swapped, even if
the container's own checksum was corrected. They are not a signature, because anyone can write a new list of hashes. To
detect that, compare the SHA-256 of the whole archive, which ``tsbatch package`` prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from tsbatch.archive.manifest import MANIFEST_NAME, json_object
from tsbatch.archive.model_config import CONFIG_NAME
from tsbatch.archive.reader import ScannedArchive
from tsbatch.archive.writer import HASHES_NAME, HASHES_SCHEMA

What = Literal["changed", "swapped", "added", "dropped", "damaged", "container", "no hashes"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from what was packed.

    Attributes:
        file: path inside the archive.
        what: the kind of difference.
        text: the description, without the file's name.
    """

    file: str
    what: What
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def verify(found: ScannedArchive) -> list[Finding]:
    """Return the differences from what was packed; empty if there are none."""
    container = [Finding(file, "container", text) for file, text in found.problems]
    try:
        expected = _expected(found)
    except ValueError as error:
        return [Finding(HASHES_NAME, "no hashes", str(error)), *container]
    own = [file for name in {*expected, *found.files} - {HASHES_NAME} for file in _compare(name, expected, found)]
    return sorted(own, key=lambda finding: finding.file) + container


def _expected(found: ScannedArchive) -> dict[str, str]:
    """The SHA-256 of each file when it was packed, by path inside.

    Raises:
        ValueError: the list is missing or not readable.
    """
    if HASHES_NAME not in found.texts:
        raise ValueError("missing: it was removed, or tsbatch did not pack the archive; nothing can be compared")
    try:
        document = json.loads(found.texts[HASHES_NAME])
        if document["schema"] != HASHES_SCHEMA:
            raise ValueError(f"has the schema {document['schema']}; this tsbatch reads {HASHES_SCHEMA}")
        return {str(name): str(entry["sha256"]) for name, entry in document["files"].items()}
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("changed: no longer a list of hashes") from None


def _compare(name: str, expected: Mapping[str, str], found: ScannedArchive) -> Iterator[Finding]:
    if name not in found.files:
        yield Finding(name, "dropped", "dropped: it was packed and is missing now")
        return
    file = found.files[name]
    if file.problem:
        yield Finding(name, "damaged", file.problem)
    elif name not in expected:
        yield Finding(name, "added", "added: it was not packed")
    elif file.sha256 != expected[name]:
        others = [other for other, digest in expected.items() if digest == file.sha256]
        if others:
            yield Finding(name, "swapped", f"swapped: it has the content of {others[0]}")
        else:
            yield Finding(name, "changed", "changed: it does not hold what was packed")


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two archives.

    Attributes:
        what: ``file``, ``config`` (a key of model-config.yaml) or ``manifest`` (a key of MANIFEST.json).
        name: path inside, or the key with the names of its parents.
        a: the first archive's value; None if it has none.
        b: the second archive's value; None if it has none.
    """

    what: Literal["file", "config", "manifest"]
    name: str
    a: Any
    b: Any


def diff(one: ScannedArchive, other: ScannedArchive) -> list[Difference]:
    """Return the differences between two archives, apart from the list of hashes and compiled files."""
    compared_by_key = {HASHES_NAME, MANIFEST_NAME, CONFIG_NAME}
    found = [
        Difference("file", name, _brief(one, name), _brief(other, name))
        for name in sorted({*one.files, *other.files} - compared_by_key)
        if _brief(one, name) != _brief(other, name)
    ]
    found += _keys("config", config_of(one), config_of(other))
    found += _keys("manifest", manifest_of(one), manifest_of(other))
    return found


def _brief(found: ScannedArchive, name: str) -> dict[str, Any] | None:
    file = found.files.get(name)
    return None if file is None else {"bytes": file.bytes, "sha256": file.sha256}


def _keys(what: Literal["config", "manifest"], one: Any, other: Any) -> list[Difference]:
    left, right = dict(_flat(one)), dict(_flat(other))
    names = list(dict.fromkeys([*left, *right]))
    return [
        Difference(what, name, left.get(name), right.get(name)) for name in names if left.get(name) != right.get(name)
    ]


def _flat(value: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flat(entry, f"{above}.{key}" if above else str(key))
    else:
        yield above, value


def config_of(found: ScannedArchive) -> dict[str, Any]:
    """Return the archive's model-config.yaml; empty if it has no readable one."""
    try:
        value = yaml.safe_load(found.texts.get(CONFIG_NAME, b""))
    except (yaml.YAMLError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def manifest_of(found: ScannedArchive) -> dict[str, Any]:
    """Return the archive's MANIFEST.json; empty if it has no readable one."""
    return json_object(found.texts.get(MANIFEST_NAME, b""))


def about(found: ScannedArchive) -> dict[str, Any]:
    """Return what ``MAR-INF/tsbatch.json`` contains besides the hashes; empty if it is missing."""
    return {key: value for key, value in json_object(found.texts.get(HASHES_NAME, b"")).items() if key != "files"}
