"""YAML files with the line of each key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import yaml

from tsbatch.configuration.known_settings import JAVA_INT_MAX
from tsbatch.lint.documents import Document, Machine, Source


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``key: value``.

    Attributes:
        key, value: as YAML means them.
        line: of the key, from 1.
        node: the value's node, for what lies inside.
    """

    key: str
    value: Any
    line: int
    node: yaml.Node


@dataclass(frozen=True)
class YamlFile(Document):
    """A YAML file; ``root`` is None when it is empty and ``problem`` says what YAML did not like, and where."""

    root: yaml.Node | None
    problem: tuple[int, str] | None = None

    def entries(self) -> list[Entry]:
        """The pairs of the top level."""
        return list(entries_of(self.root)) if self.root is not None else []

    def mapping(self) -> dict[str, Any]:
        """The top level as a mapping; of a key that stands there twice the last one."""
        return {entry.key: entry.value for entry in self.entries()}

    def entry(self, key: str) -> Entry | None:
        """The pair that holds for a key of the top level."""
        return next((entry for entry in reversed(self.entries()) if entry.key == key), None)


@dataclass(frozen=True)
class ModelConfigFile(YamlFile):
    """model-config.yaml."""


@dataclass(frozen=True)
class MetricsFile(YamlFile):
    """metrics.yaml."""


def read_yaml(source: Source, machine: Machine, kind: type[YamlFile]) -> YamlFile:
    """Parse a YAML file; what is wrong with it becomes its ``problem``."""
    try:
        text = source.data.decode("utf-8")
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                value_of(root)
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        return kind(source, machine, None, (source.data[: error.start].count(b"\n") + 1, "not UTF-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        said = getattr(error, "problem", None) or "too deep or not readable"
        return kind(source, machine, None, (mark.line + 1 if mark else 1, " ".join(str(said).split())))
    return kind(source, machine, root)


def entries_of(node: yaml.Node) -> Iterator[Entry]:
    """The pairs of a mapping node; nothing of another node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield Entry(str(value_of(key)), value_of(value), key.start_mark.line + 1, value)


def value_of(node: yaml.Node) -> Any:
    """What a node means in Python."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def is_int(value: Any) -> TypeGuard[int]:
    """Whether Java sees an Integer."""
    return isinstance(value, int) and not isinstance(value, bool) and -JAVA_INT_MAX - 1 <= value <= JAVA_INT_MAX
