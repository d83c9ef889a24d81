"""Whether an archive holds what was packed, and what two archives hold differently.

The hashes in ``MAR-INF/tsbatch.json`` find what went wrong on the way: a changed byte, a file added, dropped or
swapped, also where the container's own checksum was mended. They are no signature: who writes a new list of hashes is
not found; against that compare the SHA-256 of the whole archive, which ``tsbatch package`` prints.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from tsbatch.archive.manifest import MANIFEST_NAME
from tsbatch.archive.model_config import CONFIG_NAME
from tsbatch.archive.reader import Survey
from tsbatch.archive.writer import HASHES_NAME, HASHES_SCHEMA

What = Literal["changed", "swapped", "added", "dropped", "damaged", "container", "no hashes"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was packed.

    Attributes:
        file: path inside the archive.
        what: the kind.
        text: in words, without the file's name.
    """

    file: str
    what: What
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


def verify(found: Survey) -> list[Finding]:
    """What of an archive is not as it was packed; empty when all is."""
    container = [Finding(file, "container", text) for file, text in found.problems]
    try:
        expected = _expected(found)
    except ValueError as error:
        return [Finding(HASHES_NAME, "no hashes", str(error)), *container]
    own = [file for name in {*expected, *found.files} - {HASHES_NAME} for file in _compare(name, expected, found)]
    return sorted(own, key=lambda finding: finding.file) + container


def _expected(found: Survey) -> dict[str, str]:
    """Path inside: SHA-256, as packed.

    Raises:
        ValueError: there is no such list, or not one that can be read.
    """
    if HASHES_NAME not in found.texts:
        raise ValueError("missing: it was dropped, or the archive was not packed by tsbatch; nothing can be compared")
    try:
        document = json.loads(found.texts[HASHES_NAME])
        if document["schema"] != HASHES_SCHEMA:
            raise ValueError(f"has the schema {document['schema']}; this tsbatch reads {HASHES_SCHEMA}")
        return {str(name): str(entry["sha256"]) for name, entry in document["files"].items()}
    except (KeyError, TypeError, AttributeError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("changed: it is no list of hashes any more") from None


def _compare(name: str, expected: Mapping[str, str], found: Survey) -> Iterator[Finding]:
    if name not in found.files:
        yield Finding(name, "dropped", "dropped: it was packed and is not there")
        return
    file = found.files[name]
    if file.problem:
        yield Finding(name, "damaged", file.problem)
    elif name not in expected:
        yield Finding(name, "added", "added: it was not packed")
    elif file.sha256 != expected[name]:
        others = [other for other, digest in expected.items() if digest == file.sha256]
        if others:
            yield Finding(name, "swapped", f"swapped: it holds what {others[0]} held")
        else:
            yield Finding(name, "changed", "changed: it does not hold what was packed")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that two archives have differently.

    Attributes:
        what: ``file``, ``config`` (a key of model-config.yaml) or ``manifest`` (a key of MANIFEST.json).
        name: path inside, or the key with its parents' names.
        a: what the first has; None when it has nothing of that name.
        b: what the second has.
    """

    what: Literal["file", "config", "manifest"]
    name: str
    a: Any
    b: Any


def diff(one: Survey, other: Survey) -> list[Difference]:
    """What two archives hold differently; the hashes' list itself and compiled files left aside."""
    told = {HASHES_NAME, MANIFEST_NAME, CONFIG_NAME}
    found = [
        Difference("file", name, _brief(one, name), _brief(other, name))
        for name in sorted({*one.files, *other.files} - told)
        if _brief(one, name) != _brief(other, name)
    ]
    found += _keys("config", config_of(one), config_of(other))
    found += _keys("manifest", manifest_of(one), manifest_of(other))
    return found


def _brief(found: Survey, name: str) -> dict[str, Any] | None:
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


def config_of(found: Survey) -> dict[str, Any]:
    """The archive's model-config.yaml; empty when it has none that can be read."""
    try:
        value = yaml.safe_load(found.texts.get(CONFIG_NAME, b""))
    except (yaml.YAMLError, UnicodeDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def manifest_of(found: Survey) -> dict[str, Any]:
    """The archive's MANIFEST.json; empty when it has none that can be read."""
    return _object(found.texts.get(MANIFEST_NAME, b""))


def about(found: Survey) -> dict[str, Any]:
    """What ``MAR-INF/tsbatch.json`` says beside the hashes; empty when it is not there."""
    return {key: value for key, value in _object(found.texts.get(HASHES_NAME, b"")).items() if key != "files"}


def _object(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
