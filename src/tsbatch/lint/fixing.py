"""Writes the safe replacements: whole lines, everything else byte for byte as it was."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tsbatch.lint.findings import Edit, Finding


def fix(findings: Sequence[Finding]) -> list[Finding]:
    """Applies the edits of these findings; returns those that were applied.

    Of two edits of the same lines the first is applied; lint again for the other. Files inside archives are left
    alone: package them again.
    """
    done = []
    for name in dict.fromkeys(finding.file for finding in findings):
        path = Path(name)
        mine = [finding for finding in findings if finding.file == name and finding.edit is not None]
        if mine and path.is_file():
            chosen = _apart(mine)
            data = apply(path.read_bytes(), [finding.edit for finding in chosen if finding.edit])
            _write(path, data)
            done += chosen
    return done


def apply(data: bytes, edits: Sequence[Edit]) -> bytes:
    """``data`` with these edits, which do not overlap; the line ends of the file are kept."""
    lines = data.splitlines(keepends=True)
    end = next((line[len(line.rstrip(b"\r\n")) :] for line in lines if line.endswith((b"\n", b"\r"))), b"\n")
    for edit in sorted(edits, key=lambda edit: edit.first, reverse=True):
        new = [line.encode("utf-8") + end for line in edit.lines]
        if (
            edit.first > 1
            and new
            and edit.first - 1 <= len(lines)
            and not lines[edit.first - 2].endswith((b"\n", b"\r"))
        ):
            lines[edit.first - 2] += end
        last_is_open = edit.last == len(lines) > 0 and not lines[-1].endswith((b"\n", b"\r"))
        if new and last_is_open and edit.last >= edit.first:
            new[-1] = new[-1].removesuffix(end)
        lines[edit.first - 1 : edit.last] = new
    return b"".join(lines)


def _apart(findings: Sequence[Finding]) -> list[Finding]:
    chosen: list[Finding] = []
    taken: set[int] = set()
    for finding in findings:
        assert finding.edit is not None
        lines = set(range(finding.edit.first, max(finding.edit.first, finding.edit.last) + 1))
        if not lines & taken:
            taken |= lines
            chosen.append(finding)
    return chosen


def _write(path: Path, data: bytes) -> None:
    # Whole or not at all, and with the mode that it had.
    path = path.resolve()
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        Path(name).chmod(path.stat().st_mode & 0o7777)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
