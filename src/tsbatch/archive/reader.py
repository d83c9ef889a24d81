"""Scan an archive in any format, once from beginning to end: its files and the SHA-256 of each.

Nothing is unpacked, and memory use is constant. Archives that are dangerous to unpack (names that lead out of the
folder, links, bombs) are refused; mere differences from what was packed are recorded for
:mod:`tsbatch.archive.verification`.
"""

from __future__ import annotations

import gzip
import hashlib
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal

from tsbatch.archive import model_folder
from tsbatch.archive.writer import CHUNK, OnBytes
from tsbatch.archive.zip_layout import disagreements
from tsbatch.emulation.worker_environment import leads_out
from tsbatch.errors import UsageError

Kind = Literal["mar", "tar.gz", "folder"]
Open = Callable[[], Any]
"""Returns a context manager that gives a binary stream."""
MAX_KEPT_BYTES = 1 << 24
"""Size up to which the content of a file is kept, for the few files that :func:`_is_kept` selects."""

MAX_EXPANSION = 200
"""How many times its size an archive may unpack to. Weights do not compress; an archive beyond that is a zip bomb."""

HARMLESS_BYTES = 100_000_000
"""Size to which any archive may unpack, however small it is."""

BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, NotImplementedError)


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """One file of an archive.

    Attributes:
        bytes: its size.
        sha256: the SHA-256 of its content, in hexadecimal.
        problem: why it could not be read completely; None if it could.
    """

    bytes: int
    sha256: str
    problem: str | None = None


@dataclass(slots=True)
class ScannedArchive:
    """The contents of an archive.

    Attributes:
        path: its path.
        kind: its format.
        files: the files, by path inside.
        texts: content of manifest, hashes, settings and engines.json, by path inside.
        problems: (file, problem) of the container itself.
        compiled: compiled Python in a folder, which workers write there.
    """

    path: Path
    kind: Kind
    files: dict[str, ScannedFile] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)

    def add(self, name: str, size: int, open_stream: Open, on_bytes: OnBytes | None, limit: int | None = None) -> None:
        """Read one file.

        Raises:
            UsageError: it is larger than ``limit``.
        """
        digest, kept, count, problem = hashlib.sha256(), bytearray(), 0, None
        keep = size <= MAX_KEPT_BYTES and _is_kept(name)
        try:
            with open_stream() as stream:
                while block := stream.read(CHUNK):
                    count += len(block)
                    digest.update(block)
                    if keep:
                        kept += block
                    if on_bytes:
                        on_bytes(len(block))
                    if limit is not None and count > limit:
                        raise UsageError(_bomb(self.path))
        except BROKEN as error:
            problem = f"cannot be read completely: {' '.join(str(error).split())}"
        if name in self.files:
            self.problems.append((name, "is in the archive twice; TorchServe uses the last one"))
        self.files[name] = ScannedFile(count, digest.hexdigest(), problem)
        if keep:
            self.texts[name] = bytes(kept)


def scan(path: Path, on_bytes: OnBytes | None = None) -> ScannedArchive:
    """Scan an archive: a ``.mar``, a ``.tar.gz`` or a folder.

    Args:
        path: the archive.
        on_bytes: called with the number of bytes read.

    Raises:
        UsageError: it does not exist, has another format, is damaged, or is dangerous to unpack.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such archive")
    if path.is_dir():
        return _folder(path, on_bytes)
    try:
        if zipfile.is_zipfile(path):
            return _zip(path, on_bytes)
        with path.open("rb") as stream:
            if stream.read(2) != b"\x1f\x8b":
                raise UsageError(f"{path}: neither a .mar nor a .tar.gz, or truncated; package it again")
        return _tar(path, on_bytes)
    except (*BROKEN, RuntimeError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a readable archive ({' '.join(str(error).split())}); package it again") from None


def _folder(path: Path, on_bytes: OnBytes | None) -> ScannedArchive:
    found = ScannedArchive(path, "folder")
    for name, file in model_folder.walk(path).items():
        if "__pycache__" in name.split("/"):
            found.compiled.append(name)
            continue
        found.add(name, file.stat().st_size, partial(file.open, "rb"), on_bytes)
    return found


def _zip(path: Path, on_bytes: OnBytes | None) -> ScannedArchive:
    found = ScannedArchive(path, "mar")
    if path.suffix != ".mar":
        found.problems.append(
            (path.name, "is a zip whose name does not end in .mar; TorchServe would read it as a tar.gz")
        )
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        entries = archive.infolist()
        for entry in entries:
            # The name as written: zipfile itself would silently rewrite one that leads out of the folder.
            _check_entry(path, entry.orig_filename, link=stat.S_ISLNK(entry.external_attr >> 16))
            if entry.flag_bits & 0x1:
                raise UsageError(f"{path}: {entry.filename!r} is encrypted; TorchServe cannot read it")
        if sum(entry.file_size for entry in entries) > _size_limit(path):
            raise UsageError(_bomb(path))
        found.problems += disagreements(raw, entries, archive.start_dir)
        for entry in entries:
            if not entry.is_dir():
                found.add(entry.filename, entry.file_size, partial(archive.open, entry), on_bytes)
    return found


def _tar(path: Path, on_bytes: OnBytes | None) -> ScannedArchive:
    found, left = ScannedArchive(path, "tar.gz"), _size_limit(path)
    with gzip.open(path) as packed:
        for entry, stream in _tar_entries(path, packed):
            root, _, name = entry.name.partition("/")
            if not name:
                found.problems.append((root, "is not in a folder; TorchServe fails on such an archive"))
            found.add(name or root, entry.size, partial(nullcontext, stream), on_bytes, left)
            left -= entry.size
        while block := packed.read(CHUNK):  # to the end, where the checksum is
            left -= len(block)
            if left < 0:
                raise UsageError(_bomb(path))
    return found


def _tar_entries(path: Path, packed: gzip.GzipFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    with tarfile.open(fileobj=packed, mode="r|") as archive:
        for entry in archive:
            _check_entry(path, entry.name, link=not (entry.isreg() or entry.isdir()))
            if (stream := archive.extractfile(entry)) is not None:
                yield entry, stream


def _check_entry(path: Path, name: str, *, link: bool) -> None:
    if leads_out(name) or link:
        what = "is a link or a device" if link else "would lie outside the folder"
        raise UsageError(f"{path}: the entry {name!r} {what}; do not use this archive")


def _size_limit(path: Path) -> int:
    return max(HARMLESS_BYTES, MAX_EXPANSION * path.stat().st_size)


def _bomb(path: Path) -> str:
    return f"{path}: unpacks to over {MAX_EXPANSION} times its size; do not use this archive, it would fill the disk"


def _is_kept(name: str) -> bool:
    settings = "/" not in name and name.endswith((".yaml", ".yml"))  # the manifest says which of them is used
    return settings or name.startswith("MAR-INF/") or name == "engines.json"
