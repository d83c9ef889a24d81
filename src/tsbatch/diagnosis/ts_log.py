"""Reads a TorchServe's ``ts_log.log`` with what was rotated away from it, whatever its size, for any handler.

The split needs TorchServe's default log level (DEBUG for ``org.pytorch.serve``). Its log4j2.xml rotates at 100 MB and
at midnight into ``ts_log.29-Nov.log.gz``; a second rotation on the same day replaces the first, so hours can be
missing. Files are read in the order of their first line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from tsbatch.diagnosis.log_batches import Batch, BatchReader
from tsbatch.diagnosis.model_log import MOST_REQUESTS, ModelLog
from tsbatch.errors import UsageError

Progress = Callable[[int], None]
"""Told how many bytes of the files (as they lie on the disk) were read since it was last told."""

CHUNK: Final = 1 << 22
LOG: Final = "ts_log"


class LogReader:
    """Collects what the lines of a log tell of each model.

    Args:
        most: how many requests of each model are kept.
    """

    def __init__(self, *, most: int = MOST_REQUESTS) -> None:
        self._most = most
        self._batches = BatchReader()
        self._models: dict[tuple[str, str], ModelLog] = {}

    def feed(self, lines: list[bytes]) -> None:
        """Take whole lines, in their order."""
        for one in self._batches.feed(lines):
            model = self._model(one.model, one.version)
            if isinstance(one, Batch):
                model.add(one)
            else:
                model.refuse(one)

    def take(self) -> list[ModelLog]:
        """The models as far as they are known, and begin anew; batches still in hand count next time."""
        models, self._models = self._models, {}
        return list(models.values())

    def finish(self) -> list[ModelLog]:
        """The models, the busiest first; those that nothing was asked of are left out."""
        for batch in self._batches.finish():
            self._model(batch.model, batch.version).add(batch)
        return sorted(self._models.values(), key=lambda model: -model.requests)

    def _model(self, name: str, version: str) -> ModelLog:
        key = name, version
        if key not in self._models:
            self._models[key] = ModelLog(name, version, most=self._most)
        return self._models[key]


def read_log(path: Path, on_progress: Progress | None = None, *, most: int = MOST_REQUESTS) -> list[ModelLog]:
    """What a log folder, or one log file, tells of each model; the busiest first.

    Args:
        path: a folder that holds ts_log.log, or such a file.
        on_progress: told how far it is.
        most: how many requests of each model are kept.

    Raises:
        UsageError: there is no log, or no request in it.
        OSError: a file cannot be read.
    """
    reader = LogReader(most=most)
    files = log_files(path)
    for file in files:
        for lines in read_lines(file, on_progress or (lambda _: None)):
            reader.feed(lines)
    models = reader.finish()
    if not models:
        raise UsageError(
            f"{path}: no request in {', '.join(file.name for file in files)}; expected lines like "
            "'[DEBUG] W-9000-m_1.0 org.pytorch.serve.job.RestJob - Waiting time ns: …', which TorchServe writes after "
            "each prediction unless its log4j2.xml sets org.pytorch.serve above DEBUG"
        )
    return models


def log_files(path: Path) -> list[Path]:
    """The files of a log, oldest first.

    Raises:
        UsageError: there is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder; expected a TorchServe log folder or a {LOG}.log")
    # ts_log.29-Nov.log.gz as TorchServe rotates, ts_log.1.log and ts_log.log.1 as others do.
    found = [file for file in path.iterdir() if file.name.startswith(f"{LOG}.") and file.is_file()]
    if not found:
        raise UsageError(f"{path}: no {LOG}.log there; expected the folder that LOG_LOCATION names, or logs/")
    return sorted(found, key=lambda file: (_first_stamp(file), file.name))


def size_of(path: Path) -> int:
    """Bytes of all files of a log, as they lie on the disk.

    Raises:
        UsageError: there is no log.
    """
    return sum(file.stat().st_size for file in log_files(path))


def read_lines(file: Path, on_progress: Progress) -> Iterator[list[bytes]]:
    """The lines of a file, some megabytes at a time; a compressed one is unpacked on the way.

    Raises:
        UsageError: it is no gzip file, though its name says so, or is damaged.
    """
    with file.open("rb") as raw, _unpacked(file, raw) as stream:
        rest, told = b"", 0
        try:
            while chunk := stream.read(CHUNK):
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                yield lines
                position = raw.tell()
                on_progress(position - told)
                told = position
        except EOFError:
            pass  # TorchServe is still writing it
        except (gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"{file}: is damaged: {error}") from None
        if rest:
            yield [rest]


def _unpacked(file: Path, raw: IO[bytes]) -> IO[bytes]:
    return gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw  # type: ignore[return-value]


def _first_stamp(file: Path) -> bytes:
    for lines in read_lines(file, lambda _: None):
        return lines[0][:23]
    return b""
