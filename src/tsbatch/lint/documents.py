"""What lint reads: the bytes of a file, whether it lies on the disk or in an archive, and the machine around it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tsbatch.worker.cpu_cores import usable_cores

ALLOW = re.compile(rb"#\s*tsbatch:\s*allow\s+([a-z0-9,\s-]+)")
"""``# tsbatch: allow RULE, RULE`` on a line or the one before it silences these rules there."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the server will run.

    Attributes:
        cores: how many cores its workers share.
        environ: the environment it will be started with.
    """

    cores: int = field(default_factory=usable_cores)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True)
class Source:
    """One file as it was read.

    Attributes:
        path: as it is shown to people, with forward slashes; ``ARCHIVE!NAME`` inside an archive.
        data: its bytes.
        real: where it can be written again; None inside an archive.
    """

    path: str
    data: bytes
    real: Path | None = None

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.replace("!", "/").rpartition("/")[2]

    def lines(self) -> list[bytes]:
        """Its lines with their ends; no other byte ends a line than in Java and Python."""
        return self.data.splitlines(keepends=True)


@dataclass(frozen=True)
class Document:
    """A source that has been read for what it is. Rules are registered for the kinds of document."""

    source: Source
    machine: Machine

    @property
    def path(self) -> str:
        """Where it lies, for people."""
        return self.source.path

    def line_text(self, line: int) -> str:
        """One line without its end, from 1; empty past the end."""
        lines = self.source.lines()
        return lines[line - 1].rstrip(b"\r\n").decode("utf-8", "replace") if 0 < line <= len(lines) else ""

    def allowed(self, line: int) -> set[str]:
        """The rules that a comment on this line or the one before it silences."""
        lines = self.source.lines()
        near = lines[max(0, line - 2) : line]
        found = [match[1].decode() for text in near if (match := ALLOW.search(text))]
        return {name for text in found for name in re.split(r"[,\s]+", text) if name}
