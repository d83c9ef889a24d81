"""The files of an archive in any format, one after the other, without unpacking it."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

UNREADABLE = (OSError, EOFError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error, RuntimeError)
"""The errors of reading a damaged archive."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive.

    Attributes:
        name: its path inside, as TorchServe unpacks it.
        size: bytes.
        read: returns its content; only before the next member is asked for.
    """

    name: str
    size: int
    read: Callable[[], bytes]


def members(path: Path, *, is_zip: bool) -> Iterator[Member]:
    """Yield the files of a folder, a zip or a ``.tar.gz``.

    Raises:
        OSError, ValueError: it cannot be read, or another one of UNREADABLE.
    """
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.is_file():
                yield Member(file.relative_to(path).as_posix(), file.stat().st_size, file.read_bytes)
    elif is_zip:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield Member(entry.filename, entry.file_size, partial(archive.read, entry))
    else:
        with tarfile.open(path, "r|gz") as packed:
            for info in packed:
                # TorchServe drops the name of the first folder (ZipUtils.java).
                name = info.name.partition("/")[2]
                if info.isreg() and name and (stream := packed.extractfile(info)) is not None:
                    yield Member(name, info.size, stream.read)
