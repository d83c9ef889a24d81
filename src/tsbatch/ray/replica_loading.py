"""What a TorchServe worker does before its first request, done in a replica, without TorchServe."""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

from tsbatch._bundled import NAME as BUNDLE
from tsbatch.errors import LoadError
from tsbatch.handler import BatchHandler
from tsbatch.ray.archive_cache import Source, key_of, unpack_verified, verify_folder
from tsbatch.ray.deployment_options import RaySettings
from tsbatch.ray.shared_folder import SharedFolder
from tsbatch.worker.context import ModelContext
from tsbatch.worker.resources import one_operator_at_a_time


def load(source: Source, settings: RaySettings, gpu_id: int | None) -> tuple[BatchHandler, Callable[[], None]]:
    """The handler, loaded and warm, and what to call once it has been closed.

    The process becomes the replica's own, as a worker is: it works in the archive's folder, on the import path too.

    Raises:
        LoadError: one line with the cause and the remedy.
    """
    one_operator_at_a_time()
    folder, release = _folder_of(source)
    try:
        _enter(folder)
        handler = _handler_class(str(source.manifest["handler"]), source.file)()
        handler.load(_context(source, settings, folder, gpu_id))
    except BaseException:
        release()
        raise
    return handler, release


def _folder_of(source: Source) -> tuple[Path, Callable[[], None]]:
    if not source.sha256:
        return verify_folder(source), lambda: None
    shared = SharedFolder(key_of(source), partial(unpack_verified, source))
    return shared.path, shared.release


def _enter(folder: Path) -> None:
    os.chdir(folder)
    # What an archive brings along for workers without tsbatch must not stand in front of what is installed here.
    place = len(sys.path) if (folder / BUNDLE).is_file() else 0
    sys.path.insert(place, str(folder))
    importlib.invalidate_caches()


def _handler_class(handler: str, where: str) -> type[BatchHandler]:
    """The one class of the handler's file, as TorchServe finds it (ts/model_loader.py, ts/utils/util.py)."""
    file, colon, _ = handler.partition(":")
    name = Path(file).stem
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise LoadError(
                f"{where}: its handler {handler} is not in it, and no module of that name is here"
            ) from None
        raise LoadError(
            f"{where}: {file} needs {error.name}, which is not installed on the node {socket.gethostname()}"
        ) from error
    except Exception as error:
        raise LoadError(f"{where}: importing {file} raised {type(error).__name__}: {error}") from error
    own = [found for found in _classes(module) if issubclass(found, BatchHandler)]
    if colon or hasattr(module, "handle") or len(own) != 1:
        raise LoadError(f"{where}: {file} {_what_it_has(module, own, colon)}; {_EXPECTED}")
    return own[0]


_EXPECTED = (
    "on Ray an archive's handler is one class that subclasses tsbatch.BatchHandler: docs/from-basehandler.md shows the"
    " few edits, and tsbatch serve runs any handler"
)


def _what_it_has(module: ModuleType, own: list[type[BatchHandler]], colon: str) -> str:
    if colon or hasattr(module, "handle"):
        return "is a function"
    if own:
        return f"has {len(own)} of them ({', '.join(sorted(found.__name__ for found in own))})"
    others = [found.__name__ for found in _classes(module) if hasattr(found, "handle")]
    return f"has {others[0]}, which is no BatchHandler" if others else "has no handler's class"


def _classes(module: ModuleType) -> list[type]:
    return [found for _, found in inspect.getmembers(module, inspect.isclass) if found.__module__ == module.__name__]


def _context(source: Source, settings: RaySettings, folder: Path, gpu_id: int | None) -> ModelContext:
    # Ray reserves cores for a replica, whoever shares the machine with it: the reserve is its share.
    section = {**(source.config.get("tsbatch") or {}), "threads": settings.threads}
    return ModelContext(
        model_dir=folder,
        model_name=settings.name,
        model_version=source.version,
        batch_size=settings.batch_size,
        gpu_id=gpu_id,
        config={**source.config, "tsbatch": section},
        manifest=source.manifest,
    )
