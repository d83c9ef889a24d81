"""An archive unpacked where TorchServe would: ``<temporary folder>/models/<32 hexadecimal digits>``."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tsbatch.archive.model_store import link_or_copy
from tsbatch.emulation.worker_environment import unpack

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
            link_or_copy(archive, target)
        else:
            target.mkdir()
            unpack(archive, target)
        yield work, target
    finally:
        shutil.rmtree(work, ignore_errors=True)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
