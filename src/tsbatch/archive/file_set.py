"""The files of an archive by their path inside; files that would overwrite each other are an error."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from tsbatch.archive import model_folder
from tsbatch.errors import UsageError

AUX_FOLDER = "auxiliary"
"""The folder of auxiliary files. Not ``aux``, because Windows cannot create a folder of that name."""


class Contents:
    """The archive's files by path; two files that would overwrite each other are an error.

    TorchServe unpacks later entries over earlier ones, and on Windows and macOS two names that differ only in case are
    one file.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files: dict[str, Path | bytes] = {}
        self._taken: dict[str, str] = {}
        self._folders: set[str] = set()
        self._inside = {path.resolve(): name for name, path in files.items()}
        for name, path in files.items():
            self.add(name, path)

    def add(self, name: str, file: Path | bytes) -> None:
        """Add ``file`` under ``name``; adding a file of the model folder again is allowed."""
        if isinstance(file, Path) and self._inside.get(file.resolve()) == name and name in self.files:
            return
        above = [str(folder) for folder in PurePosixPath(name).parents[:-1]]
        for part in (name, *above):
            if other := self._taken.get(_key(part)):
                raise UsageError(f"{_source(file)}: {other!r} is in the archive already{_from(self.files[other])}")
        if _key(name) in self._folders:
            raise UsageError(f"{_source(file)}: {name!r} is a folder in the archive already")
        self.files[name] = file
        self._taken[_key(name)] = name
        self._folders.update(map(_key, above))

    def add_file(self, option: str, path: Path, name: str) -> None:
        """Add a file that the user named on the command line."""
        if not path.is_file():
            raise UsageError(f"{option} {path}: no such file")
        self.add(name, path)

    def add_aux(self, key: str, path: Path) -> str:
        """Add an auxiliary file, unless it is part of the model folder; return its path in the archive."""
        from tsbatch.worker.aux_files import READERS

        if path.suffix.lower() not in READERS:
            raise UsageError(f"--aux {key}={path}: unknown kind of file; known are {', '.join(READERS)}")
        name = self._inside.get(path.resolve())
        if name is None:
            name = f"{AUX_FOLDER}/{path.name}"
            self.add_file(f"--aux {key}:", path, name)
        return name

    def add_extra(self, path: Path) -> None:
        """Add a file at the root, or a folder under its own name."""
        if not path.is_dir():
            self.add_file("--extra", path, path.name)
            return
        for inside, file in model_folder.walk(path).items():
            if not model_folder.clutter(inside):
                self.add(f"{path.resolve().name}/{inside}", file)


def _key(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _source(file: Path | bytes) -> str:
    return "tsbatch's own file" if isinstance(file, bytes) else str(file)


def _from(file: Path | bytes) -> str:
    return f" (from {file})" if isinstance(file, Path) else ""
