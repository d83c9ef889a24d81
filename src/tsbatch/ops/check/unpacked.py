"""An archive unpacked where TorchServe would: ``<temporary folder>/models/<32 hexadecimal digits>``."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsbatch.errors import LoadError
from tsbatch.ops.model_source import ZIPS, place
from tsbatch.workplace import leads_out, unpack

PREFIX = "tsbatch-check-"


@contextmanager
def unpacked(archive: Path) -> Iterator[tuple[Path, Path]]:
    """A private folder, and the model's folder in it; both are gone after the block.

    A folder is linked, not copied, as TorchServe does with one in its model store (archive/model/ModelArchive.java).

    Raises:
        LoadError: it cannot be unpacked; the line says why.
    """
    work = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    try:
        target = work / "models" / uuid.uuid4().hex
        target.parent.mkdir()
        if archive.is_dir():
            place(archive, target)
        else:
            target.mkdir()
            (unpack if archive.suffix in ZIPS else _unpack_tar)(archive, target)
        yield work, target
    finally:
        shutil.rmtree(work, ignore_errors=True)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _unpack_tar(archive: Path, target: Path) -> None:
    """A .tar.gz, whose first folder's name TorchServe drops (archive/utils/ZipUtils.java)."""
    try:
        with tarfile.open(archive, "r:gz") as bundle:
            for entry in bundle:
                entry.name = entry.name.partition("/")[2]
                if not entry.name:
                    continue
                if leads_out(entry.name) or not (entry.isfile() or entry.isdir()):
                    raise LoadError(f"{archive}: the entry {entry.name!r} would lie outside the folder, or is a link")
                bundle.extract(entry, target, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise LoadError(f"{archive}: not a readable model archive ({error}); pack it again") from error
