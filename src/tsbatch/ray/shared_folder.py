"""Share one unpacked copy of an archive among all replicas on a node; the last one to stop removes it.

Each user of the copy holds a shared lock on a file next to it. The system releases a process's locks however it ends,
so the copy of a killed replica is removed by the next replica that starts on the node, of any archive.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tsbatch.errors import LoadError

COMPLETE = ".tsbatch-complete"
"""A file that marks the folder as complete."""


def root() -> Path:
    """Return the folder of a node's shared folders, which is private to this user.

    Raises:
        LoadError: another user created it.
    """
    folder = Path(tempfile.gettempdir(), f"tsbatch-ray-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise LoadError(f"{folder}: belongs to another user, or others may write there; remove it, or set TMPDIR")
    return folder


class SharedFolder:
    """The copy of one archive on this node, held until :meth:`release`.

    Args:
        key: identifies the archive.
        fill: writes the archive's files into the given empty folder.

    Attributes:
        path: the folder.
    """

    def __init__(self, key: str, fill: Callable[[Path], None]) -> None:
        self.path = root() / key
        self._file = self.path.with_name(f"{key}.lock")
        self._lock = -1
        while not self._acquire(fill):
            self._unlock()
        _remove_abandoned(self._file)

    def _acquire(self, fill: Callable[[Path], None]) -> bool:
        """Lock the copy and fill it if necessary; return False if its last user removed it in between."""
        self._lock = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        if not self._complete:
            # One replica fills it while the others on the node wait. Changing a lock's kind releases it for a moment.
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self._is_current and not self._complete:
                self._fill(fill)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        return self._is_current and self._complete

    def _fill(self, fill: Callable[[Path], None]) -> None:
        try:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.mkdir()
            fill(self.path)
            (self.path / COMPLETE).touch()
        except BaseException:
            _remove(self._file)
            self._unlock()
            raise

    @property
    def _complete(self) -> bool:
        return (self.path / COMPLETE).is_file()

    @property
    def _is_current(self) -> bool:
        return _is_current(self._lock, self._file)

    def _unlock(self) -> None:
        number, self._lock = self._lock, -1
        if number >= 0:
            os.close(number)

    def release(self) -> None:
        """Stop using the copy; it is removed if no other replica uses it. Further calls do nothing."""
        if self._lock < 0:
            return
        with contextlib.suppress(BlockingIOError):  # another replica still uses it
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current:
                _remove(self._file)
        self._unlock()


def _is_current(lock: int, file: Path) -> bool:
    """Return whether the locked file is still the one that others would lock."""
    with contextlib.suppress(FileNotFoundError):
        return os.fstat(lock).st_ino == file.stat().st_ino
    return False


def _remove(file: Path) -> None:
    """Remove a copy and its lock file, which the caller has locked exclusively."""
    shutil.rmtree(file.with_suffix(""), ignore_errors=True)
    file.unlink(missing_ok=True)


def _remove_abandoned(own: Path) -> None:
    """Remove the copies that no replica holds any more because theirs were killed."""
    for file in own.parent.glob("*.lock"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), file.open("rb") as lock:
            if file != own:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_current(lock.fileno(), file):
                    _remove(file)
