"""The user's directory for state files, and JSON files in it that only their owner can read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from tsbatch.errors import ServerError
from tsbatch.system.atomic_write import atomic_file

SCHEMA = 1
"""Version of all state files."""

T = TypeVar("T")


def state_folder() -> Path:
    """Return the user's folder for state files; ``TSBATCH_STATE_DIR`` overrides it."""
    if chosen := os.environ.get("TSBATCH_STATE_DIR"):
        return Path(chosen)
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "tsbatch"
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA", str(Path.home()))) / "tsbatch" / "state"
    return Path(os.environ.get("XDG_STATE_HOME", str(Path.home() / ".local" / "state"))) / "tsbatch"


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; it appears whole or not at all."""
    with atomic_file(path, private=True) as stream:
        stream.write(text.encode())


def write_state(path: Path, values: Mapping[str, Any]) -> None:
    """Write a state file as JSON and make its folder if needed; paths become strings."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(path, json.dumps(values, default=str, indent=2) + "\n")


def read_state(path: Path, kind: type[T]) -> T | None:
    """Read a state file into a dataclass; None if there is no such file.

    Raises:
        ServerError: the file is damaged, or another version of tsbatch wrote it.
    """
    try:
        values = json.loads(path.read_bytes())
        if isinstance(values, dict) and values.get("schema", SCHEMA) != SCHEMA:
            raise ServerError(f"another version of tsbatch wrote {path}; stop that server with that version")
        return TypeAdapter(kind).validate_python(values)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise ServerError(f"cannot read the state file {path} ({reason}); remove it")
