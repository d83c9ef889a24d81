"""config.properties with the line of each pair, parsed by Java's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import javaproperties

from tsbatch.lint.documents import Document, Machine, Source

SEPARATOR = re.compile(r"[ \t\f]*(?P<key>(?:\\.|[^\\\s:=])*)[ \t\f]*[:=]?[ \t\f]*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Pair:
    """One key and its value.

    Attributes:
        key, value: as Java parses them.
        raw: the value as written, including continuation lines.
        line, last: the first and last line, from 1.
    """

    key: str
    value: str
    raw: str
    line: int
    last: int


@dataclass(frozen=True)
class PropertiesFile(Document):
    """config.properties."""

    pairs: tuple[Pair, ...]

    @cached_property
    def values(self) -> dict[str, str]:
        """Value by key; the last of several equal keys counts, as in Java."""
        return {pair.key: pair.value for pair in self.pairs}

    def last(self, key: str) -> Pair | None:
        """Return the pair that counts for a key."""
        return next((pair for pair in reversed(self.pairs) if pair.key == key), None)

    def is_true(self, key: str) -> bool:
        """Return a switch as Java parses it: ``true`` in any case is true, everything else is false."""
        return self.values.get(key, "").lower() == "true"


def read_properties(source: Source, machine: Machine) -> PropertiesFile:
    """Parse a .properties file.

    Raises:
        ValueError: a broken Unicode escape, with which TorchServe does not start.
    """
    return PropertiesFile(source, machine, tuple(_pairs(source)))


def _pairs(source: Source) -> Iterator[Pair]:
    line = 1
    # Java decodes bytes one by one (Properties.load(InputStream)).
    for element in javaproperties.parse(source.data):
        lines = element.source.count("\n") or element.source.count("\r") or 1
        if isinstance(element, javaproperties.KeyValue):
            text = element.source.rstrip("\r\n")
            match = SEPARATOR.match(text)
            assert match is not None
            yield Pair(element.key, element.value, text[match.end() :], line, line + lines - 1)
        line += lines
