"""What lint reads: the bytes of a file on disk or in an archive, and the machine that will run the server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tsbatch.worker.cpu_cores import usable_cores

ALLOW = re.compile(rb"#\s*tsbatch:\s*allow\s+([a-z0-9,\s-]+)")
"""``# tsbatch: allow RULE, RULE`` on a line or on the line before it silences these rules there."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that will run the server.

    Attributes:
        cores: how many cores its workers share.
        environ: the environment of the server process.
    """

    cores: int = field(default_factory=usable_cores)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True)
class Source:
    """The content of one file.

    Attributes:
        path: as shown to users, with forward slashes; ``ARCHIVE!NAME`` inside an archive.
        data: its bytes.
        real: the file on disk, for ``--fix``; None inside an archive.
    """

    path: str
    data: bytes
    real: Path | None = None

    @property
    def name(self) -> str:
        """The file name."""
        return self.path.replace("!", "/").rpartition("/")[2]

    def lines(self) -> list[bytes]:
        """Return the lines with their line ends; the line ends are those of Java and Python."""
        return self.data.splitlines(keepends=True)


@dataclass(frozen=True)
class Document:
    """A parsed source. Each rule is registered for one kind of document."""

    source: Source
    machine: Machine

    @property
    def path(self) -> str:
        """The path as shown to users."""
        return self.source.path

    def line_text(self, line: int) -> str:
        """Return one line without its line end, counting from 1; empty past the end."""
        lines = self.source.lines()
        return lines[line - 1].rstrip(b"\r\n").decode("utf-8", "replace") if 0 < line <= len(lines) else ""

    def allowed(self, line: int) -> set[str]:
        """Return the rules that a comment on this line or on the one before it silences."""
        near = self.source.lines()[max(0, line - 2) : line]
        lists = [match[1].decode() for text in near if (match := ALLOW.search(text))]
        return {name for text in lists for name in re.split(r"[,\s]+", text) if name}
