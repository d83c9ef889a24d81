"""The bytes of an archive in each of its formats: the same for the same files.

Entries are sorted and carry no time, owner or mode of this machine. The last one, ``MAR-INF/tsbatch.json``, holds the
SHA-256 of all others, taken from the very bytes that were written.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, Literal, get_args

from tsbatch._version import __version__
from tsbatch.archive.manifest import MANIFEST_NAME
from tsbatch.errors import UsageError

Format = Literal["mar", "mar-compressed", "tar.gz", "folder"]
"""``mar``: a zip without compression, since weights do not compress and TorchServe unpacks it faster.
``mar-compressed``: the same, compressed. ``tar.gz``: what SageMaker takes. ``folder``: used by TorchServe where it lies
in the model store, never unpacked or copied."""

FORMATS: tuple[Format, ...] = get_args(Format)
CHUNK = 1 << 20
HASHES_NAME = "MAR-INF/tsbatch.json"
HASHES_SCHEMA = 1
LONG_AGO = 315_532_800
"""1980-01-01, the first moment a zip can name, for formats that must name one."""

OnBytes = Callable[[int], None]
"""Told the number of bytes since the last call."""


def file_name(name: str, form: Format) -> str:
    """What a model's archive is called in this format."""
    return name + {"mar": ".mar", "mar-compressed": ".mar", "tar.gz": ".tar.gz", "folder": ""}[form]


def sha256(path: Path, on_bytes: OnBytes | None = None) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return sha256_of(stream, on_bytes)


def sha256_of(stream: IO[bytes], on_bytes: OnBytes | None = None) -> str:
    """The SHA-256 of what is left of a stream, in hexadecimal."""
    digest = hashlib.sha256()
    while block := stream.read(CHUNK):
        digest.update(block)
        if on_bytes:
            on_bytes(len(block))
    return digest.hexdigest()


class Reading:
    """The files of an archive on their way into it, each read once, with the hashes of what was read.

    Args:
        files: path inside: where the file lies, or its bytes.
        about: what ``MAR-INF/tsbatch.json`` says beside the hashes.
        on_bytes: told of the bytes read.
    """

    def __init__(
        self, files: Mapping[str, Path | bytes], about: Mapping[str, Any] | None = None, on_bytes: OnBytes | None = None
    ) -> None:
        self.files = files
        self._about = about or {}
        self._on_bytes = on_bytes or (lambda _: None)
        self._found: dict[str, dict[str, Any]] = {}

    @property
    def names(self) -> list[str]:
        """Every path inside, sorted."""
        return sorted(self.files)

    def size(self, name: str) -> int:
        """Bytes of one file, as it says now."""
        file = self.files[name]
        return len(file) if isinstance(file, bytes) else file.stat().st_size

    def blocks(self, name: str, copy: Path | None = None) -> Iterator[bytes]:
        """What the file holds, or a copy of it that was made, in pieces of CHUNK.

        Raises:
            UsageError: it became longer or shorter while it was read.
        """
        file, size, digest = copy or self.files[name], self.size(name), hashlib.sha256()
        count = 0
        with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as source:
            while block := source.read(CHUNK):
                count += len(block)
                if count > size:
                    break
                digest.update(block)
                yield block
                self._on_bytes(len(block))
        if count != size:
            raise UsageError(f"{file if isinstance(file, Path) else name}: changed while it was packed; try again")
        self._found[name] = {"bytes": count, "sha256": digest.hexdigest()}

    def hashes(self) -> bytes:
        """``MAR-INF/tsbatch.json``, once everything was read."""
        files = {name: self._found[name] for name in self.names}
        document = {"schema": HASHES_SCHEMA, "tsbatch": __version__, **self._about, "files": files}
        return json.dumps(document, indent=1).encode("ascii")


def write_zip(reading: Reading, stream: BinaryIO, *, compress: bool = False) -> None:
    """A ``.mar``, written in constant memory.

    The stream must be able to seek: Java's ZipInputStream takes no stored entry whose size follows its data.
    """
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", method, allowZip64=True) as archive:
        for name in reading.names:
            entry = _zip_entry(name, method)
            entry.file_size = reading.size(name)
            with archive.open(entry, "w") as sink:
                for block in reading.blocks(name):
                    sink.write(block)
        archive.writestr(_zip_entry(HASHES_NAME, method), reading.hashes())


def _zip_entry(name: str, method: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.compress_type = method
    entry.create_system = 3
    entry.external_attr = 0o100644 << 16
    return entry


def write_tar(reading: Reading, stream: BinaryIO, root: str) -> None:
    """A ``.tar.gz``. TorchServe drops each entry's first folder, and fails on an entry without one (ZipUtils.java)."""
    # A tar has no table of contents: with the manifest first, reading the model's name does not take gigabytes.
    names = sorted(reading.names, key=lambda name: (name != MANIFEST_NAME, name))
    with (
        gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed,
        tarfile.TarFile(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, copybufsize=CHUNK) as archive,
    ):
        for name in names:
            entry = _tar_entry(f"{root}/{name}", reading.size(name))
            blocks = reading.blocks(name)
            archive.addfile(entry, _Blocks(blocks))
            next(blocks, None)  # to its end, where the hash is noted
        hashes = reading.hashes()
        archive.addfile(_tar_entry(f"{root}/{HASHES_NAME}", len(hashes)), io.BytesIO(hashes))


def _tar_entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, LONG_AGO, 0o644
    return entry


class _Blocks:
    """Blocks as a file that is read from begin to end in pieces of CHUNK."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks

    def read(self, _size: int = -1, /) -> bytes:
        return next(self._blocks, b"")


def write_folder(reading: Reading, folder: Path, *, link: bool = False) -> None:
    """A folder, in one that is empty.

    Args:
        reading: the files.
        folder: where to.
        link: hard links instead of copies: no second copy of the weights on the disk, and a file that is later
            changed in place at its source changes here too.

    Raises:
        UsageError: the source is on another file system, which no hard link can reach.
    """
    for name in reading.names:
        target, file = folder / name, reading.files[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(file, bytes):
            target.write_bytes(file)
        elif link:
            _link(file, target)
        else:
            _copy(file, target)
        for _ in reading.blocks(name, target):
            pass
    (folder / HASHES_NAME).parent.mkdir(exist_ok=True)
    (folder / HASHES_NAME).write_bytes(reading.hashes())


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file.resolve(), target)
    except OSError as error:
        raise UsageError(f"{file}: no hard link can be made ({error.strerror}); leave out --link to copy") from None


def _copy(file: Path, target: Path) -> None:
    # Python 3.14's copyfile does this by itself: a file system that can lets both share their blocks.
    with file.open("rb") as source, target.open("xb") as sink:
        try:
            while os.copy_file_range(source.fileno(), sink.fileno(), 1 << 30):  # type: ignore[attr-defined,unused-ignore]
                pass
        except (AttributeError, OSError):
            source.seek(0)
            sink.truncate(0)
            shutil.copyfileobj(source, sink, CHUNK)
