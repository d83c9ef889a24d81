"""The user's directory for state files, and private files in it."""

from __future__ import annotations

import os
from pathlib import Path


def state_folder() -> Path:
    """The user's own folder for state files; ``TSBATCH_STATE_DIR`` names another one."""
    if chosen := os.environ.get("TSBATCH_STATE_DIR"):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "tsbatch"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "tsbatch" / "state"
    return Path(os.environ.get("XDG_STATE_HOME", str(Path.home() / ".local" / "state"))) / "tsbatch"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, all of it or nothing."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
