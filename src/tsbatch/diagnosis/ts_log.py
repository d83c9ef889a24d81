"""Read TorchServe's ``ts_log.log`` and its rotated files, of any size and for any handler.

The latency breakdown needs TorchServe's default log level (DEBUG for ``org.pytorch.serve``). Its log4j2.xml rotates at
100 MB and at midnight into ``ts_log.29-Nov.log.gz``; a second rotation on the same day replaces the first, so hours can
be missing. Files are read in the order of their first line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tsbatch.diagnosis.log_batches import Batch, BatchReader
from tsbatch.diagnosis.model_log import MAX_REQUESTS, ModelLog
from tsbatch.errors import UsageError

Progress = Callable[[int], None]
"""Called with the number of bytes on disk read since the previous call."""

CHUNK: Final = 1 << 22
LOG: Final = "ts_log"


class LogReader:
    """Collect the requests of each model from the lines of a log.

    Args:
        limit: maximum number of requests kept of each model.
    """

    def __init__(self, *, limit: int = MAX_REQUESTS) -> None:
        self._limit = limit
        self._batches = BatchReader()
        self._models: dict[tuple[str, str], ModelLog] = {}

    def feed(self, lines: list[bytes]) -> None:
        """Add complete lines."""
        for one in self._batches.feed(lines):
            model = self._model(one.model, one.version)
            if isinstance(one, Batch):
                model.add(one)
            else:
                model.refuse(one)

    def take(self) -> list[ModelLog]:
        """Return the models so far and start again; unfinished batches are part of the next result."""
        models, self._models = self._models, {}
        return list(models.values())

    def finish(self) -> list[ModelLog]:
        """Return the models with requests, the busiest first."""
        for batch in self._batches.finish():
            self._model(batch.model, batch.version).add(batch)
        return sorted(self._models.values(), key=lambda model: -model.requests)

    def _model(self, name: str, version: str) -> ModelLog:
        key = name, version
        if key not in self._models:
            self._models[key] = ModelLog(name, version, limit=self._limit)
        return self._models[key]


def read_log(path: Path, on_progress: Progress | None = None, *, limit: int = MAX_REQUESTS) -> list[ModelLog]:
    """Read a log folder or a log file; the busiest model comes first.

    Args:
        path: a folder that contains ts_log.log, or such a file.
        on_progress: called while reading.
        limit: maximum number of requests kept of each model.

    Raises:
        UsageError: there is no log, or it has no request.
        OSError: a file cannot be read.
    """
    reader = LogReader(limit=limit)
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
    """Return the files of a log, oldest first.

    Raises:
        UsageError: there is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder; expected a TorchServe log folder or a {LOG}.log")
    # TorchServe rotates to ts_log.29-Nov.log.gz, other configurations to ts_log.1.log or ts_log.log.1.
    found = [file for file in path.iterdir() if file.name.startswith(f"{LOG}.") and file.is_file()]
    if not found:
        raise UsageError(f"{path}: no {LOG}.log there; expected the folder that LOG_LOCATION names, or logs/")
    return sorted(found, key=lambda file: (next(read_lines(file, lambda _: None), [b""])[0][:23], file.name))


def size_of(path: Path) -> int:
    """Return the size of all files of a log on disk, in bytes.

    Raises:
        UsageError: there is no log.
    """
    return sum(file.stat().st_size for file in log_files(path))


def read_lines(file: Path, on_progress: Progress) -> Iterator[list[bytes]]:
    """Yield the lines of a file, a few megabytes at a time; ``.gz`` files are decompressed.

    Raises:
        UsageError: a ``.gz`` file is damaged.
    """
    with file.open("rb") as raw:
        stream = gzip.GzipFile(fileobj=raw) if file.suffix == ".gz" else raw
        rest, reported = b"", 0
        try:
            while chunk := stream.read(CHUNK):
                lines = (rest + chunk).split(b"\n")
                rest = lines.pop()
                yield lines
                position = raw.tell()
                on_progress(position - reported)
                reported = position
        except EOFError:
            pass  # TorchServe is still writing it
        except (gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"{file} is damaged: {error}") from None
        if rest:
            yield [rest]
