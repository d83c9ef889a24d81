"""How long archives took to load when they were checked, for the day when a server finds one too slow.

One small file in the folder of state files. An archive that changed since is unknown again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tsbatch.ops.check.advice import Advice

SCHEMA = 1
FILE = "load-times"
"""Without an ending: what ends in .json there is a server's."""
MOST = 200


def remember(archive: Path, seconds: float, advice: Advice) -> None:
    """Note what a check measured; an unwritable folder is no reason to fail a check."""
    known = {**_known(), _key(archive): {"seconds": seconds, "startup_timeout": advice.value}}
    newest = dict(list(known.items())[-MOST:])
    try:
        _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(json.dumps({"schema": SCHEMA, "archives": newest}, indent=2) + "\n")
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
        known: dict[str, Any] = json.loads(_file().read_text(encoding="utf-8"))["archives"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return known


def _file() -> Path:
    # Not at the top: the modules of the server commands import this one.
    from tsbatch.ops.instance import state_folder

    return state_folder() / FILE


def _write(text: str) -> None:
    from tsbatch.ops.tokens import write_private

    write_private(_file(), text)
