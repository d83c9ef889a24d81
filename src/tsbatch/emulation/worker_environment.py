"""The environment of a worker, set up temporarily in this process: working folder, import path, private modules.

A TorchServe worker is a process whose working folder is the unpacked archive, which is also on its import path
(wlm/WorkerLifeCycle.java, util/messages/EnvironmentUtils.java). Several archives have a ``handler.py``, so each
environment keeps the modules imported from its folder to itself and removes them from ``sys.modules`` on exit.
"""

from __future__ import annotations

import ast
import gzip
import importlib
import os
import shutil
import signal
import stat
import sys
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PureWindowsPath
from types import ModuleType
from typing import Any

from tsbatch._bundled import NAME
from tsbatch.errors import LoadError

BROKEN = (zipfile.BadZipFile, zipfile.LargeZipFile, tarfile.TarError, gzip.BadGzipFile)
_ONE_AT_A_TIME = threading.RLock()
"""The working folder and ``sys.path`` belong to the whole process."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.mar`` or a ``.tar.gz`` into ``folder``.

    Raises:
        LoadError: it is not an archive, is damaged, or has an entry that is a link or would lie outside the folder.
    """
    try:
        if archive.suffix != ".mar":  # the same test as in TorchServe (archive/utils/ArchiveUtils.java)
            _unpack_tar(archive, folder)
            return
        with zipfile.ZipFile(archive) as bundle:
            for entry in bundle.infolist():
                # The name as written: zipfile itself silently changes it to a path inside the folder.
                _refuse_escape(archive, entry.orig_filename, link=stat.S_ISLNK(entry.external_attr >> 16))
                bundle.extract(entry, folder)
    except (*BROKEN, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise LoadError(f"{archive}: not a readable model archive ({error}); pack it again") from error


def leads_out(name: str) -> bool:
    """Whether a path inside an archive leads out of the folder, by the rules of POSIX or Windows."""
    path = PureWindowsPath(name)
    return bool(path.drive or path.root or ".." in path.parts)


def _unpack_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive, "r:gz") as bundle:
        for entry in bundle:
            _refuse_escape(archive, entry.name, link=not (entry.isfile() or entry.isdir()))
            # TorchServe drops the name of the first folder (archive/utils/ZipUtils.java).
            name, stream = entry.name.partition("/")[2], bundle.extractfile(entry)
            if stream is not None:
                _refuse_escape(archive, name, link=False)  # m//etc/x becomes /etc/x
                if not name:
                    raise LoadError(f"{archive}: the entry {entry.name!r} is not in a folder; TorchServe requires one")
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as target:
                    shutil.copyfileobj(stream, target)


def _refuse_escape(archive: Path, name: str, *, link: bool) -> None:
    if link or leads_out(name):
        what = "is a link" if link else "would lie outside the folder"
        raise LoadError(f"{archive}: the entry {name!r} {what}; do not use this archive")


class WorkerEnvironment:
    """A working folder with the modules that were imported from it.

    Args:
        folder: the model's folder.
        paths: entries at the front of the import path while the environment is entered, in order.
        modules: modules that exist from the start, by name.
    """

    def __init__(self, folder: Path, *, paths: Iterable[Path], modules: Mapping[str, ModuleType] | None = None) -> None:
        self.folder = folder
        self._root = os.path.realpath(folder) + os.sep
        self._paths = [str(path) for path in paths]
        self._modules: dict[str, ModuleType] = dict(modules or {})
        self._names = _importable_names(folder)
        importlib.invalidate_caches()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter the environment; everything is restored on exit. One thread at a time, over all environments."""
        with _ONE_AT_A_TIME, self._in_folder(), self._on_path(), self._with_modules():
            yield

    def forget(self) -> None:
        """Drop the modules and the entries of the import caches for the folder."""
        self._modules.clear()
        for path in list(sys.path_importer_cache):
            if (os.path.realpath(path) + os.sep).startswith(self._root):
                del sys.path_importer_cache[path]

    @contextmanager
    def _in_folder(self) -> Iterator[None]:
        before = Path.cwd()
        # The folder may be deleted after loading; a worker stays in it, where relative paths lead nowhere either.
        with suppress(FileNotFoundError):
            os.chdir(self.folder)
        try:
            yield
        finally:
            os.chdir(before)

    @contextmanager
    def _on_path(self) -> Iterator[None]:
        path, writes = sys.path[:], sys.dont_write_bytecode
        sys.path[:0] = self._paths
        sys.dont_write_bytecode = True
        try:
            yield
        finally:
            # Keep entries that the handler added for the next time.
            self._paths = [entry for entry in sys.path if entry not in path]
            sys.path[:] = path
            sys.dont_write_bytecode = writes

    @contextmanager
    def _with_modules(self) -> Iterator[None]:
        foreign = self._foreign()
        for name in foreign:
            del sys.modules[name]
        sys.modules.update(self._modules)
        before = set(sys.modules)
        try:
            yield
        finally:
            new = {name: module for name, module in sys.modules.items() if name not in before and self._is_mine(module)}
            self._modules.update(new)
            for name in self._modules:
                sys.modules.pop(name, None)
            sys.modules.update(foreign)

    def _foreign(self) -> dict[str, ModuleType]:
        """Return modules from elsewhere whose names this folder provides, with their submodules."""
        tops = {name for name in self._names if name in sys.modules and not self._is_mine(sys.modules[name])}
        if not tops:
            return {}
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in tops}

    def _is_mine(self, module: Any) -> bool:
        # Through __dict__: lazy modules run code on attribute access.
        names = getattr(module, "__dict__", {})
        file = names.get("__file__") or next(iter(names.get("__path__") or ()), None)
        return isinstance(file, str) and os.path.realpath(file).startswith(self._root)


def _importable_names(folder: Path) -> set[str]:
    names = set()
    for entry in folder.iterdir():
        if entry.suffix == ".py" or (entry / "__init__.py").exists():
            names.add(entry.stem)
    # A worker with its own json.py or __main__.py would fail before it reaches its handler.
    return {name for name in names if name.isidentifier()} - sys.stdlib_module_names - {"__main__"} - _bundled(folder)


def _bundled(folder: Path) -> set[str]:
    """Return the packages that an archive bundles; this process has its own, and numpy can be loaded only once."""
    path = folder / NAME
    if not path.is_file():
        return set()
    names = ast.parse(path.read_bytes()).body[-1]
    return set(ast.literal_eval(names.value)) if isinstance(names, ast.Assign) else set()


@contextmanager
def undone_later(clean_up: ExitStack) -> Iterator[None]:
    """Undo the changes to the process made by loading a model: signals at once, the rest in ``clean_up``.

    A handler may set torch's threads and environment variables as in a worker, and needs them while it is in use; how
    the caller's process ends remains up to the caller.
    """
    import torch

    clean_up.callback(torch.set_num_threads, torch.get_num_threads())
    on_terminate, before = signal.getsignal(signal.SIGTERM), dict(os.environ)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and on_terminate is not None:
            signal.signal(signal.SIGTERM, on_terminate)
        changed = [name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)]
        clean_up.callback(_restore_variables, {name: before.get(name) for name in changed})


def _restore_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def temporary_folder_of(archive: Path) -> Iterator[Path]:
    """Unpack the archive into a private folder, which is removed if the block raises; otherwise the caller owns it."""
    folder = Path(tempfile.mkdtemp(prefix="tsbatch-"))
    try:
        unpack(archive, folder)
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
