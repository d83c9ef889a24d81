"""An archive in any format, read once from begin to end: what is in it, and the SHA-256 of each file.

Nothing is unpacked, and the memory needed is constant. What must not be unpacked anywhere (names that lead out of the
folder, links, bombs) is refused; what merely differs from what was packed is noted,
for :mod:`tsbatch.archive.verification`.
"""

from __future__ import annotations

import gzip
import hashlib
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from tsbatch.archive import model_folder
from tsbatch.archive.writer import CHUNK, OnBytes
from tsbatch.archive.zip_layout import disagreements
from tsbatch.emulation.worker_environment import leads_out
from tsbatch.errors import UsageError

Kind = Literal["mar", "tar.gz", "folder"]
KEPT = 1 << 24
"""Bytes of a file up to which its content is kept, for the few that :func:`_is_told` names."""

MOST_EXPANSION = 200
"""What a compressed archive may grow by. Weights do not compress; what grows more is meant to fill a disk."""

HARMLESS = 100_000_000
"""Bytes that may come out of any archive, however small."""

BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, NotImplementedError)


@dataclass(frozen=True, slots=True)
class Found:
    """One file of an archive.

    Attributes:
        bytes: its size.
        sha256: of what it holds, in hexadecimal.
        problem: why it could not be read whole; None when it could.
    """

    bytes: int
    sha256: str
    problem: str | None = None


@dataclass(slots=True)
class Survey:
    """What an archive holds.

    Attributes:
        path: where it lies.
        kind: its format.
        files: path inside: what was found.
        texts: path inside: content, of manifest, hashes, settings and engines.json.
        problems: (file, what is wrong) of the container itself.
        compiled: compiled Python in a folder, which the workers write there.
    """

    path: Path
    kind: Kind
    files: dict[str, Found] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)

    def take(self, name: str, size: int, stream: IO[bytes], on_bytes: OnBytes | None, most: int | None = None) -> None:
        """Reads one file.

        Raises:
            UsageError: it is larger than ``most``.
        """
        digest, kept, count, problem = hashlib.sha256(), bytearray(), 0, None
        keep = size <= KEPT and _is_told(name)
        try:
            while block := stream.read(CHUNK):
                count += len(block)
                digest.update(block)
                if keep:
                    kept += block
                if on_bytes:
                    on_bytes(len(block))
                if most is not None and count > most:
                    raise UsageError(_bomb(self.path))
        except BROKEN as error:
            problem = f"cannot be read whole: {' '.join(str(error).split())}"
        if name in self.files:
            self.problems.append((name, "is in the archive twice; TorchServe takes the last one"))
        self.files[name] = Found(count, digest.hexdigest(), problem)
        if keep:
            self.texts[name] = bytes(kept)


def survey(path: Path, on_bytes: OnBytes | None = None) -> Survey:
    """Reads an archive: a ``.mar``, a ``.tar.gz`` or a folder.

    Args:
        path: where it lies.
        on_bytes: told of the bytes read.

    Raises:
        UsageError: it is not there, is none of them, is broken, or must not be unpacked.
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
                raise UsageError(f"{path}: neither a .mar nor a .tar.gz, or cut off at its end; pack it again")
        return _tar(path, on_bytes)
    except (*BROKEN, RuntimeError, OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a readable archive ({' '.join(str(error).split())}); pack it again") from None


def _folder(path: Path, on_bytes: OnBytes | None) -> Survey:
    found = Survey(path, "folder")
    for name, file in model_folder.walk(path).items():
        if "__pycache__" in name.split("/"):
            found.compiled.append(name)
            continue
        with file.open("rb") as stream:
            found.take(name, file.stat().st_size, stream, on_bytes)
    return found


def _zip(path: Path, on_bytes: OnBytes | None) -> Survey:
    found = Survey(path, "mar")
    if path.suffix != ".mar":
        found.problems.append(
            (path.name, "is a zip whose name does not end in .mar; TorchServe would read it as a tar.gz")
        )
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        entries = archive.infolist()
        for entry in entries:
            # As it was written: zipfile itself would quietly bend the name into the folder.
            _check_entry(path, entry.orig_filename, link=stat.S_ISLNK(entry.external_attr >> 16))
            if entry.flag_bits & 0x1:
                raise UsageError(f"{path}: {entry.filename!r} is encrypted; TorchServe cannot read it")
        if sum(entry.file_size for entry in entries) > _most(path):
            raise UsageError(_bomb(path))
        found.problems += disagreements(raw, entries, archive.start_dir)
        for entry in entries:
            if not entry.is_dir():
                _zip_entry(found, archive, entry, on_bytes)
    return found


def _zip_entry(found: Survey, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, on_bytes: OnBytes | None) -> None:
    try:
        with archive.open(entry) as stream:
            found.take(entry.filename, entry.file_size, stream, on_bytes)
    except BROKEN as error:
        found.files[entry.filename] = Found(0, "", f"cannot be read: {' '.join(str(error).split())}")


def _tar(path: Path, on_bytes: OnBytes | None) -> Survey:
    found, left = Survey(path, "tar.gz"), _most(path)
    with gzip.open(path) as packed:
        for entry, stream in _tar_entries(path, packed):
            root, _, name = entry.name.partition("/")
            if not name:
                found.problems.append((root, "lies in no folder; TorchServe fails on such an archive"))
            found.take(name or root, entry.size, stream, on_bytes, left)
            left -= entry.size
        while block := packed.read(CHUNK):  # to its end, where the checksum is
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


def _most(path: Path) -> int:
    return max(HARMLESS, MOST_EXPANSION * path.stat().st_size)


def _bomb(path: Path) -> str:
    return f"{path}: holds over {MOST_EXPANSION} times its size; do not use this archive, it would fill the disk"


def _is_told(name: str) -> bool:
    settings = "/" not in name and name.endswith((".yaml", ".yml"))  # the manifest says which of them
    return settings or name.startswith("MAR-INF/") or name == "engines.json"
