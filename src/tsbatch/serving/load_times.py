"""How long archives took to load when they were checked, for the day when a server finds one too slow.

One small file in the folder of state files. An archive that changed since is unknown again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tsbatch.system.state_directory import state_folder, write_private

SCHEMA = 1
FILE = "load-times"
"""Without an ending: what ends in .json there is a server's."""
MOST = 200


def remember(archive: Path, seconds: float, startup_timeout: int) -> None:
    """Note what a check measured; an unwritable folder is no reason to fail a check."""
    known = {**_known(), _key(archive): {"seconds": seconds, "startup_timeout": startup_timeout}}
    newest = dict(list(known.items())[-MOST:])
    try:
        state_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(state_folder() / FILE, json.dumps({"schema": SCHEMA, "archives": newest}, indent=2) + "\n")
    except OSError:
        return


def recall(archive: Path) -> tuple[float, int] | None:
    """Seconds an archive took to load in process, and the startupTimeout that follows; None when it is not known."""
    try:
        found = _known()[_key(archive)]
        return float(found["seconds"]), int(found["startup_timeout"])
    except (KeyError, OSError, TypeError, ValueError):
        return None


def _key(archive: Path) -> str:
    about = archive.resolve().stat()
    return f"{archive.resolve()} {about.st_size} {about.st_mtime_ns}"


def _known() -> dict[str, Any]:
    try:
        known: dict[str, Any] = json.loads((state_folder() / FILE).read_text(encoding="utf-8"))["archives"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return known
