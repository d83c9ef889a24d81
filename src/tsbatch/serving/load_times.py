"""Load times of the archives that ``tsbatch check`` measured, for advice on a server where a load times out.

They are in one small state file. An archive that has changed since counts as unknown.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from tsbatch.errors import ServerError
from tsbatch.system.state_directory import SCHEMA, read_state, state_folder, write_state

FILE = "load-times"
"""Without a suffix, because each .json file in that folder is a server's."""
MAX_ARCHIVES = 200


@dataclass(frozen=True, slots=True)
class LoadTime:
    """Seconds that an archive took to load in process, and the startupTimeout it needs."""

    seconds: float
    startup_timeout: int


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """The content of the file: load times by archive, size and modification time."""

    archives: dict[str, LoadTime] = field(default_factory=dict)


def remember(archive: Path, seconds: float, startup_timeout: int) -> None:
    """Save what a check measured, if the state folder can be written."""
    known = {**_known(), _key(archive): LoadTime(seconds, startup_timeout)}
    newest = dict(list(known.items())[-MAX_ARCHIVES:])
    try:
        write_state(state_folder() / FILE, {"schema": SCHEMA, **asdict(LoadTimes(newest))})
    except OSError:
        return


def recall(archive: Path) -> LoadTime | None:
    """Return the archive's load time; None if it was not measured."""
    try:
        return _known().get(_key(archive))
    except OSError:
        return None


def _key(archive: Path) -> str:
    about = archive.resolve().stat()
    return f"{archive.resolve()} {about.st_size} {about.st_mtime_ns}"


def _known() -> dict[str, LoadTime]:
    try:
        found = read_state(state_folder() / FILE, LoadTimes)
    except ServerError:
        return {}
    return found.archives if found else {}
