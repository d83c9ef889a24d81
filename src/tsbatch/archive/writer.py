"""Write an archive in any format, reproducibly: the same files give the same bytes.

Entries are sorted and carry no time, owner or mode of this machine. The last one, ``MAR-INF/tsbatch.json``, contains
the SHA-256 of all others, computed from the very bytes that were written.
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
``mar-compressed``: the same, compressed. ``tar.gz``: the format of SageMaker. ``folder``: TorchServe uses it in place,
in the model store, without unpacking or copying it."""

FORMATS: tuple[Format, ...] = get_args(Format)
CHUNK = 1 << 20
HASHES_NAME = "MAR-INF/tsbatch.json"
HASHES_SCHEMA = 1
LONG_AGO = 315_532_800
"""1980-01-01, the earliest time a zip can store, for formats that require a time."""

OnBytes = Callable[[int], None]
"""Called with the number of bytes since the last call."""


def file_name(name: str, form: Format) -> str:
    """Return the file name of a model's archive in this format."""
    return name + {"mar": ".mar", "mar-compressed": ".mar", "tar.gz": ".tar.gz", "folder": ""}[form]


def sha256(path: Path, on_bytes: OnBytes | None = None) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return sha256_of(stream, on_bytes)


def sha256_of(stream: IO[bytes], on_bytes: OnBytes | None = None) -> str:
    """Return the SHA-256 of the rest of a stream, in hexadecimal."""
    digest = hashlib.sha256()
    while block := stream.read(CHUNK):
        digest.update(block)
        if on_bytes:
            on_bytes(len(block))
    return digest.hexdigest()


class ArchiveInput:
    """The files that go into an archive, each read once, and the hashes of what was read.

    Args:
        files: each file's path or its bytes, by path inside.
        about: what ``MAR-INF/tsbatch.json`` contains besides the hashes.
        on_bytes: called with the number of bytes read.
    """

    def __init__(
        self, files: Mapping[str, Path | bytes], about: Mapping[str, Any] | None = None, on_bytes: OnBytes | None = None
    ) -> None:
        self.files = files
        self._about = about or {}
        self._on_bytes = on_bytes or (lambda _: None)
        self._hashes: dict[str, dict[str, Any]] = {}

    @property
    def names(self) -> list[str]:
        """Every path inside, sorted."""
        return sorted(self.files)

    def size(self, name: str) -> int:
        """Return the current size of one file, in bytes."""
        file = self.files[name]
        return len(file) if isinstance(file, bytes) else file.stat().st_size

    def blocks(self, name: str, copy: Path | None = None) -> Iterator[bytes]:
        """Yield the content of a file, or of a copy of it, in pieces of CHUNK.

        Raises:
            UsageError: its size changed while it was read.
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
        self._hashes[name] = {"bytes": count, "sha256": digest.hexdigest()}

    def hashes(self) -> bytes:
        """Return ``MAR-INF/tsbatch.json``, after everything was read."""
        files = {name: self._hashes[name] for name in self.names}
        document = {"schema": HASHES_SCHEMA, "tsbatch": __version__, **self._about, "files": files}
        return json.dumps(document, indent=1).encode("ascii")


def write_zip(source: ArchiveInput, stream: BinaryIO, *, compress: bool = False) -> None:
    """Write a ``.mar``, in constant memory.

    The stream must be seekable: Java's ZipInputStream rejects a stored entry whose size follows its data.
    """
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(stream, "w", method, allowZip64=True) as archive:
        for name in source.names:
            entry = _zip_entry(name, method)
            entry.file_size = source.size(name)
            with archive.open(entry, "w") as sink:
                for block in source.blocks(name):
                    sink.write(block)
        archive.writestr(_zip_entry(HASHES_NAME, method), source.hashes())


def _zip_entry(name: str, method: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.compress_type = method
    entry.create_system = 3
    entry.external_attr = 0o100644 << 16
    return entry


def write_tar(source: ArchiveInput, stream: BinaryIO, root: str) -> None:
    """Write a ``.tar.gz``. TorchServe drops each entry's first folder and fails if there is none (ZipUtils.java)."""
    # A tar has no table of contents: with the manifest first, reading the model's name does not take gigabytes.
    names = sorted(source.names, key=lambda name: (name != MANIFEST_NAME, name))
    with (
        gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed,
        tarfile.TarFile(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, copybufsize=CHUNK) as archive,
    ):
        for name in names:
            entry = _tar_entry(f"{root}/{name}", source.size(name))
            blocks = source.blocks(name)
            archive.addfile(entry, _Blocks(blocks))
            next(blocks, None)  # to the end, where the hash is recorded
        hashes = source.hashes()
        archive.addfile(_tar_entry(f"{root}/{HASHES_NAME}", len(hashes)), io.BytesIO(hashes))


def _tar_entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, LONG_AGO, 0o644
    return entry


class _Blocks:
    """Blocks as a file that is read sequentially in pieces of CHUNK."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks

    def read(self, _size: int = -1, /) -> bytes:
        return next(self._blocks, b"")


def write_folder(source: ArchiveInput, folder: Path, *, link: bool = False) -> None:
    """Write the files into an empty folder.

    Args:
        source: the files.
        folder: the empty folder.
        link: make hard links instead of copies: no second copy of the weights on the disk, but a source file that is
            later changed in place changes here too.

    Raises:
        UsageError: the source is on another file system, to which hard links are impossible.
    """
    for name in source.names:
        target, file = folder / name, source.files[name]
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(file, bytes):
            target.write_bytes(file)
        elif link:
            _link(file, target)
        else:
            _copy(file, target)
        for _ in source.blocks(name, target):
            pass
    (folder / HASHES_NAME).parent.mkdir(exist_ok=True)
    (folder / HASHES_NAME).write_bytes(source.hashes())


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file.resolve(), target)
    except OSError as error:
        raise UsageError(f"{file}: no hard link can be made ({error.strerror}); leave out --link to copy it") from None


def _copy(file: Path, target: Path) -> None:
    # As Python 3.14's copyfile does: if the file system supports it, both files share their blocks.
    with file.open("rb") as source, target.open("xb") as sink:
        try:
            while os.copy_file_range(source.fileno(), sink.fileno(), 1 << 30):  # type: ignore[attr-defined,unused-ignore]
                pass
        except (AttributeError, OSError):
            source.seek(0)
            sink.truncate(0)
            shutil.copyfileobj(source, sink, CHUNK)
