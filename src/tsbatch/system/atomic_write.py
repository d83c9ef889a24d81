"""Files and folders that appear on the disk whole or not at all, whoever else writes the same name at the same time.

What is being written is hidden, and TorchServe's model store skips hidden names. A killed writer of a folder, or of a
file where files cannot be without a name, leaves its hidden part behind; the next writer of that name removes it.
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
"""Ends the name of what is being written. Its writer holds a lock on it from before it has this name."""

NEW = ".new"
"""Ends its name until then."""

SECONDS_UNTIL_LOCKED = 60

TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
"""Why a folder cannot be renamed when its new name is another's."""


@contextlib.contextmanager
def appearing(target: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A stream whose bytes become ``target`` when the block ends well.

    On Linux the file has no name until then, so that even SIGKILL leaves nothing behind.

    Args:
        target: the file.
        replace: take the place of what is there.

    Raises:
        FileExistsError: something is there, and ``replace`` is false.
    """
    _remove_leftovers(target)
    part = _part(target)
    try:
        with _nameless(target.parent) or _claimed_file(part) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if not part.exists():
                _name(stream, part)
            if os.name != "nt":  # before the lock goes with the stream; Windows renames no open file
                _take_place(part, target, replace=replace)
        if os.name == "nt":
            _take_place(part, target, replace=replace)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def appearing_folder(target: Path, *, replace: bool = True) -> Iterator[Path]:
    """An empty folder beside ``target`` that becomes ``target`` when the block ends well.

    Args:
        target: the folder.
        replace: take the place of the folder that is there; for a moment neither has the name.

    Raises:
        FileExistsError: something is there, and ``replace`` is false.
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


def _nameless(folder: Path) -> BinaryIO | None:
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").is_dir():
        return None
    try:
        stream = os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "wb+")
    except OSError:  # a file system without it
        return None
    try_lock(stream.fileno())
    return stream


def _name(stream: BinaryIO, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Only with a folder descriptor does os.link follow the link in /proc.
        os.link(f"/proc/self/fd/{stream.fileno()}", path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _take_place(part: Path, target: Path, *, replace: bool) -> None:
    if replace:
        part.replace(target)
        return
    try:
        os.link(part, target)  # unlike renaming, it takes nobody's place
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
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


def _claimed_file(part: Path) -> BinaryIO:
    if os.name == "nt":
        return part.open("xb+")  # Windows removes and renames no open file
    new = part.with_suffix(NEW)
    stream = new.open("xb+")
    try_lock(stream.fileno())
    new.rename(part)
    return stream


def try_lock(descriptor: int) -> bool:
    """Lock an open file, which holds until it is closed, also when its process is killed.

    Returns:
        Whether nobody else holds the lock; always, on Windows and on a file system without locks.
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
            if _in_use(path) or (path.suffix == NEW and young):
                continue
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _in_use(path: Path) -> bool:
    """Whether its writer lives. Where that cannot be known a folder is taken to be; Windows keeps open files itself."""
    if os.name == "nt":
        return path.is_dir()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)
