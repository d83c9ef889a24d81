"""Files and folders that appear on disk whole or not at all, even with several writers of the same name.

While it is being written, a file or folder has a hidden name, which TorchServe's model store skips. A writer that is
killed can leave this hidden part behind (of a file only where the system has no unnamed files); the next writer of the
same name removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PART = ".part"
"""Suffix of a file or folder that is being written. Its writer locks it before it gets this name."""

NEW = ".new"
"""Suffix until it is locked."""

SECONDS_UNTIL_LOCKED = 60

TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
"""Errors of renaming a folder to a name that is taken."""


@contextlib.contextmanager
def atomic_file(target: Path, *, replace: bool = True, private: bool = False) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file ``target`` when the block ends without an error.

    On Linux the file has no name until then, so even SIGKILL leaves nothing behind.

    Args:
        target: the file.
        replace: replace an existing file.
        private: let only the owner read it.

    Raises:
        FileExistsError: ``target`` exists and ``replace`` is false.
    """
    _remove_leftovers(target)
    part = _part(target)
    mode = 0o600 if private else 0o666
    try:
        with _unnamed(target.parent, mode) or _claimed_file(part, mode) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if not part.exists():
                _name(stream, part)
            if os.name != "nt":  # while the stream holds the lock; Windows cannot rename an open file
                _rename_file(part, target, replace=replace)
        if os.name == "nt":
            _rename_file(part, target, replace=replace)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """An empty folder beside ``target`` that becomes ``target`` when the block ends without an error.

    Args:
        target: the folder.
        replace: replace an existing folder; for a moment there is none of that name.

    Raises:
        FileExistsError: ``target`` exists and ``replace`` is false.
    """
    _remove_leftovers(target)
    part = _part(target)
    try:
        with _claimed_folder(part):
            yield part
            while not _renamed(part, target):
                if not replace:
                    raise FileExistsError(f"{target} exists")
                _move_away(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _part(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}{PART}")


def _unnamed(folder: Path, mode: int) -> BinaryIO | None:
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").is_dir():
        return None
    try:
        stream = os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, mode), "wb+")
    except OSError:  # this file system has no unnamed files
        return None
    try_lock(stream.fileno())
    return stream


def _name(stream: BinaryIO, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # os.link follows the link in /proc only if it gets a folder descriptor.
        os.link(f"/proc/self/fd/{stream.fileno()}", path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _rename_file(part: Path, target: Path, *, replace: bool) -> None:
    if replace:
        part.replace(target)
        return
    try:
        os.link(part, target)  # unlike a rename, this never replaces a file
    except OSError:  # the target exists, or the file system has no hard links
        if target.exists():
            raise FileExistsError(f"{target} exists") from None
        part.rename(target)


def _renamed(part: Path, target: Path) -> bool:
    try:
        part.rename(target)
    except OSError as error:
        if error.errno not in TAKEN:
            raise
        return False
    return True


def _move_away(target: Path) -> None:
    old = _part(target)
    try:
        target.rename(old)
    except FileNotFoundError:  # another writer was faster
        return
    if old.is_dir() and not old.is_symlink():
        shutil.rmtree(old, ignore_errors=True)
    else:
        old.unlink(missing_ok=True)


def _claimed_file(part: Path, mode: int) -> BinaryIO:
    if os.name == "nt":
        return part.open("xb+")  # Windows cannot remove or rename an open file
    new = part.with_suffix(NEW)
    stream = os.fdopen(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "wb+")
    try_lock(stream.fileno())
    new.rename(part)
    return stream


def try_lock(descriptor: int) -> bool:
    """Lock an open file until it is closed or its process ends.

    Returns:
        Whether the lock was free; always true on Windows and on a file system without locks.
    """
    if os.name == "nt":
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno != errno.EWOULDBLOCK
    return True


@contextlib.contextmanager
def _claimed_folder(part: Path) -> Iterator[None]:
    if os.name == "nt":
        part.mkdir()
        yield
        return
    new = part.with_suffix(NEW)
    new.mkdir()
    descriptor = os.open(new, os.O_RDONLY)
    try:
        try_lock(descriptor)
        new.rename(part)
        yield
    finally:
        os.close(descriptor)


def _remove_leftovers(target: Path) -> None:
    hidden = f".{_literal(target.name)}.{'[0-9a-f]' * 16}"
    for path in [*target.parent.glob(hidden + PART), *target.parent.glob(hidden + NEW)]:
        with contextlib.suppress(OSError):
            young = time.time() - path.stat().st_mtime < SECONDS_UNTIL_LOCKED
            # A young one is not even tried: its writer may be about to lock it, and would not get the lock.
            if (path.suffix == NEW and young) or _in_use(path):
                continue
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _in_use(path: Path) -> bool:
    """Whether its writer still runs; on Windows, where open files cannot be removed anyway, assumed for folders."""
    if os.name == "nt":
        return path.is_dir()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)
