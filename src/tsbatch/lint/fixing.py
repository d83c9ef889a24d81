"""Apply the safe replacements: whole lines change, everything else stays byte for byte."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tsbatch.lint.findings import Edit, Finding
from tsbatch.system.atomic_write import atomic_file


def fix(findings: Sequence[Finding]) -> list[Finding]:
    """Apply the edits of these findings and return the findings that were fixed.

    If two edits concern the same lines, only the first is applied; run lint again for the other. Files inside archives
    are left alone, because they must be packaged again.
    """
    fixed = []
    for name in dict.fromkeys(finding.file for finding in findings):
        path = Path(name)
        if path.is_file() and (chosen := _without_overlaps(findings, name)):
            data = apply(path.read_bytes(), [finding.edit for finding in chosen if finding.edit])
            _write(path.resolve(), data)
            fixed += chosen
    return fixed


def apply(data: bytes, edits: Sequence[Edit]) -> bytes:
    """Return ``data`` with these edits, which must not overlap; the file's line ends are kept."""
    lines = data.splitlines(keepends=True)
    end = next((line[len(line.rstrip(b"\r\n")) :] for line in lines if _is_closed(line)), b"\n")
    for edit in sorted(edits, key=lambda edit: edit.first, reverse=True):
        new = [line.encode("utf-8") + end for line in edit.lines]
        before = edit.first - 2
        if new and 0 <= before < len(lines) and not _is_closed(lines[before]):
            lines[before] += end
        last_is_open = edit.last == len(lines) > 0 and not _is_closed(lines[-1])
        if new and last_is_open and edit.last >= edit.first:
            new[-1] = new[-1].removesuffix(end)
        lines[edit.first - 1 : edit.last] = new
    return b"".join(lines)


def _is_closed(line: bytes) -> bool:
    return line.endswith((b"\n", b"\r"))


def _without_overlaps(findings: Sequence[Finding], file: str) -> list[Finding]:
    chosen: list[Finding] = []
    taken: set[int] = set()
    for finding in findings:
        if finding.file == file and (edit := finding.edit):
            lines = set(range(edit.first, max(edit.first, edit.last) + 1))
            if not lines & taken:
                taken |= lines
                chosen.append(finding)
    return chosen


def _write(path: Path, data: bytes) -> None:
    with atomic_file(path) as stream:
        stream.write(data)
        if os.name != "nt":
            os.fchmod(stream.fileno(), path.stat().st_mode & 0o7777)
