"""YAML files with the line of each key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from tsbatch.lint.documents import Document, Machine, Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``key: value``.

    Attributes:
        key, value: as parsed.
        line: the key's line, from 1.
        node: the value's node, for nested entries.
    """

    key: str
    value: Any
    line: int
    node: yaml.Node


@dataclass(frozen=True)
class YamlFile(Document):
    """A YAML file; ``root`` is None if it is empty, and ``problem`` is the line and cause of a parse error."""

    root: yaml.Node | None
    problem: tuple[int, str] | None = None

    def entries(self) -> list[Entry]:
        """Return the pairs of the top level."""
        return list(entries_of(self.root)) if self.root is not None else []

    def mapping(self) -> dict[str, Any]:
        """Return the top level as a mapping; the last of several equal keys counts."""
        return {entry.key: entry.value for entry in self.entries()}

    def entry(self, key: str) -> Entry | None:
        """Return the pair that counts for a key of the top level."""
        return next((entry for entry in reversed(self.entries()) if entry.key == key), None)


@dataclass(frozen=True)
class ModelConfigFile(YamlFile):
    """model-config.yaml."""


@dataclass(frozen=True)
class MetricsFile(YamlFile):
    """metrics.yaml."""


def read_yaml(source: Source, machine: Machine, kind: type[YamlFile]) -> YamlFile:
    """Parse a YAML file; a parse error becomes its ``problem``."""
    try:
        root = yaml.compose(source.data.decode("utf-8"), yaml.SafeLoader)
        if root is not None:
            value_of(root)
    except UnicodeDecodeError as error:
        return kind(source, machine, None, (source.data[: error.start].count(b"\n") + 1, "not UTF-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        cause = getattr(error, "problem", None) or "nested too deeply or not readable"
        return kind(source, machine, None, (mark.line + 1 if mark else 1, " ".join(str(cause).split())))
    return kind(source, machine, root)


def entries_of(node: yaml.Node) -> Iterator[Entry]:
    """Yield the pairs of a mapping node; none for any other node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield Entry(str(value_of(key)), value_of(value), key.start_mark.line + 1, value)


def value_of(node: yaml.Node) -> Any:
    """Return the Python value of a node."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()
