"""The bytes of an archive: the same for the same files, and on the disk whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 20

OnBytes = Callable[[int], None]
"""Told the number of bytes since the last call."""


def sha256(path: Path, on_bytes: OnBytes | None = None) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
            if on_bytes:
                on_bytes(len(block))
    return digest.hexdigest()


def write_zip(files: Mapping[str, Path | bytes], stream: BinaryIO, on_bytes: OnBytes | None = None) -> None:
    """Writes ``files`` (path inside: where it lies, or its bytes) in constant memory.

    Stored, not compressed: weights do not compress, and TorchServe unpacks it faster. Entries are sorted and
    carry no time, owner or mode of this machine. The stream must be able to seek: Java's ZipInputStream takes no
    stored entry whose size follows its data.
    """
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name in sorted(files):
            file = files[name]
            entry = zipfile.ZipInfo(name)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            entry.file_size = len(file) if isinstance(file, bytes) else file.stat().st_size
            with archive.open(entry, "w") as sink:
                for block in _blocks(file):
                    sink.write(block)
                    if on_bytes:
                        on_bytes(len(block))


def _blocks(file: Path | bytes) -> Iterator[bytes]:
    if isinstance(file, bytes):
        yield file
        return
    with file.open("rb") as source:
        while block := source.read(CHUNK):
            yield block


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become ``target`` when the block ends well, in place of what was there.

    On Linux the file has no name until then, so that even SIGKILL leaves nothing behind. Elsewhere it has a
    hidden one, which TorchServe's model store skips.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with _nameless(target.parent) or part.open("xb+") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if not part.exists():
                _name(stream, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _nameless(folder: Path) -> BinaryIO | None:
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666), "wb+")
    except OSError:  # a file system without it
        return None


def _name(stream: BinaryIO, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Only with a folder descriptor does os.link follow the link in /proc.
        os.link(f"/proc/self/fd/{stream.fileno()}", path.name, dst_dir_fd=folder)
    finally:
        os.close(folder)
