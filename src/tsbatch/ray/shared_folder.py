"""One unpacked copy of an archive on a node, for all its replicas there; the last one that ends removes it.

Who uses the copy holds a shared lock on a file beside it. The system drops a process's locks however it ends, so what
a replica that was killed leaves is removed by the next one that starts on the node, of whichever archive.
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
"""A file in the folder that says that all of it is there."""


def root() -> Path:
    """Where a node's shared folders lie: private to this user.

    Raises:
        LoadError: somebody else has made it.
    """
    folder = Path(tempfile.gettempdir(), f"tsbatch-ray-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o077:
        raise LoadError(f"{folder}: belongs to somebody else, or others may write there; remove it, or set TMPDIR")
    return folder


class SharedFolder:
    """The copy of one archive on this node, held until :meth:`release`.

    Args:
        key: tells archives apart.
        fill: puts the archive's files into the empty folder it is given.

    Attributes:
        path: the folder.
    """

    def __init__(self, key: str, fill: Callable[[Path], None]) -> None:
        self.path = root() / key
        self._file = self.path.with_name(f"{key}.lock")
        self._lock = -1
        while not self._held(fill):
            self._let_go()
        _remove_abandoned(self._file)

    def _held(self, fill: Callable[[Path], None]) -> bool:
        """Whether the copy is there and held; not where its last user removed it between two steps."""
        self._lock = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        if not self._complete:
            # One replica fills it while the others of the node wait. Changing a lock's kind lets go of it for a moment.
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
            self._let_go()
            raise

    @property
    def _complete(self) -> bool:
        return (self.path / COMPLETE).is_file()

    @property
    def _is_current(self) -> bool:
        return _is_current(self._lock, self._file)

    def _let_go(self) -> None:
        number, self._lock = self._lock, -1
        if number >= 0:
            os.close(number)

    def release(self) -> None:
        """Use it no more; it is removed when no other replica does. Calling it again does nothing."""
        if self._lock < 0:
            return
        with contextlib.suppress(BlockingIOError):  # somebody else is still there
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_current:
                _remove(self._file)
        self._let_go()


def _is_current(lock: int, file: Path) -> bool:
    """Whether the file that is locked is still the one that others would lock."""
    with contextlib.suppress(FileNotFoundError):
        return os.fstat(lock).st_ino == file.stat().st_ino
    return False


def _remove(file: Path) -> None:
    """A copy and its lock's file, which the caller has to itself."""
    shutil.rmtree(file.with_suffix(""), ignore_errors=True)
    file.unlink(missing_ok=True)


def _remove_abandoned(own: Path) -> None:
    """The copies that nobody holds: their replicas were killed."""
    for file in own.parent.glob("*.lock"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), file.open("rb") as lock:
            if file != own:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_current(lock.fileno(), file):
                    _remove(file)
