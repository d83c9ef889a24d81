"""Load a handler in a replica as a TorchServe worker does, without TorchServe."""

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
    """Return the loaded, warm handler, and a function to call after it was closed.

    As in a worker, the archive's folder becomes the process's working folder and goes on its import path.

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
    # The packages that an archive brings for workers without tsbatch must not hide those that are installed here.
    position = len(sys.path) if (folder / BUNDLE).is_file() else 0
    sys.path.insert(position, str(folder))
    importlib.invalidate_caches()


def _handler_class(handler: str, where: str) -> type[BatchHandler]:
    """Return the only class of the handler's file, as TorchServe finds it (ts/model_loader.py, ts/utils/util.py)."""
    file, colon, _ = handler.partition(":")
    name = Path(file).stem
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise LoadError(
                f"{where}: its handler {handler} is missing, and no module of that name is installed"
            ) from None
        raise LoadError(
            f"{where}: {file} needs {error.name}, which is not installed on the node {socket.gethostname()}"
        ) from error
    except Exception as error:
        raise LoadError(f"{where}: importing {file} raised {type(error).__name__}: {error}") from error
    own = [found for found in _classes(module) if issubclass(found, BatchHandler)]
    if colon or hasattr(module, "handle") or len(own) != 1:
        raise LoadError(f"{where}: {file} {_problem(module, own, colon)}; {_EXPECTED}")
    return own[0]


_EXPECTED = (
    "on Ray the handler must be one subclass of tsbatch.BatchHandler: docs/from-basehandler.md shows the few edits;"
    " tsbatch serve runs any handler"
)


def _problem(module: ModuleType, own: list[type[BatchHandler]], colon: str) -> str:
    if colon or hasattr(module, "handle"):
        return "is a function"
    if own:
        return f"has {len(own)} of them ({', '.join(sorted(found.__name__ for found in own))})"
    others = [found.__name__ for found in _classes(module) if hasattr(found, "handle")]
    return f"has {others[0]}, which is not a BatchHandler" if others else "has no handler class"


def _classes(module: ModuleType) -> list[type]:
    return [found for _, found in inspect.getmembers(module, inspect.isclass) if found.__module__ == module.__name__]


def _context(source: Source, settings: RaySettings, folder: Path, gpu_id: int | None) -> ModelContext:
    # Whatever else runs on the machine, the cores that Ray reserves for the replica are its share.
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
