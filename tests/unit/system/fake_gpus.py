"""A stand-in for nvidia-smi, where there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

PROGRAM = """#!/bin/sh
case "$1" in
  *compute-apps*) printf '{apps}' ;;
  *memory.free*) printf '{free}' ;;
  *memory.total*) printf '{total}' ;;
  *) exit 6 ;;
esac
"""


def stand_in(
    folder: Path,
    monkeypatch,
    *,
    apps: Sequence[tuple[str, int | str, int | str]] = (),
    free: Mapping[str, int | str] | None = None,
    total: Mapping[str, int | str] | None = None,
) -> None:
    """Put a program in front of all others that answers as nvidia-smi does; memory in MiB."""
    rows = {
        "apps": "".join(f"{gpu}, {pid}, {memory}\\n" for gpu, pid, memory in apps),
        "free": "".join(f"{gpu}, {memory}\\n" for gpu, memory in (free or {}).items()),
        "total": "".join(f"{gpu}, {memory}\\n" for gpu, memory in (total or {}).items()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(PROGRAM.format(**rows))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
