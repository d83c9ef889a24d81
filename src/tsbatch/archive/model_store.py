"""The models that a server should serve: their files, names and versions."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tsbatch.archive.manifest import MANIFEST_NAME
from tsbatch.archive.members import UNREADABLE, members
from tsbatch.errors import UsageError

URL = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
ALL = "all"
SUFFIXES = (".mar", ".model", ".tar.gz")
"""Files that ``load_models=all`` loads, besides folders (ModelServer.java)."""


@dataclass(frozen=True)
class ModelSource:
    """An archive or an unpacked model folder on this machine.

    Attributes:
        path: where it is.
        alias: the name to serve it under, if the user gave one.
    """

    path: Path
    alias: str | None = None

    @classmethod
    def parse(cls, text: str | Path) -> ModelSource:
        """Parse ``FILE`` or ``NAME=FILE``.

        Raises:
            UsageError: the file does not exist, or is not an archive.
        """
        whole = Path(text)
        alias, equals, rest = str(text).partition("=")
        path, name = (Path(rest), alias) if equals and not whole.exists() else (whole, None)
        if not path.exists():
            raise UsageError(f"no such archive: {path}")
        source = cls(path.absolute(), name)
        _ = source._manifest  # a server would report it late, and less clearly
        return source

    @property
    def name(self) -> str:
        """The name to serve it under."""
        # TorchServe's own rule for a manifest without a name (ModelServer.getDefaultModelName).
        fallback = re.sub(r"(\W|^_)", "_", self.path.name.removesuffix(".mar").removesuffix(".model"))
        return str(self.alias or self._manifest.get("modelName") or fallback)

    @property
    def version(self) -> str | None:
        """The version, if the manifest has one."""
        version = self._manifest.get("modelVersion")
        return None if version is None else str(version)

    @property
    def requirements(self) -> str | None:
        """The requirements file, if the manifest names one."""
        file = self._manifest.get("requirementsFile")
        return None if file is None else str(file)

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        try:
            model: dict[str, Any] = json.loads(self._manifest_text())["model"]
        except (KeyError, TypeError, *UNREADABLE) as error:
            raise UsageError(f"{self.path} is not a model archive: {error}") from error
        return model

    def _manifest_text(self) -> bytes:
        if self.path.is_dir():
            return (self.path / MANIFEST_NAME).read_bytes()
        # TorchServe reads a file that is not called .mar as a .tar.gz.
        for member in members(self.path, is_zip=self.path.suffix == ".mar"):
            if member.name == MANIFEST_NAME:
                return member.read()
        raise ValueError(f"there is no {MANIFEST_NAME} in it")

    def link_into(self, store: Path) -> str:
        """Make it available in a model store that tsbatch manages, and return its file name there."""
        name = self.path.name
        for number in range(1000):
            target = store / name
            if target.exists() and target.resolve() == self.path.resolve():
                return name
            if not target.exists() and not target.is_symlink():
                link_or_copy(self.path, target)
                return name
            ending = ".tar.gz" if self.path.name.endswith(".tar.gz") else self.path.suffix
            name = f"{self.path.name.removesuffix(ending)}-{number + 2}{ending}"
        raise UsageError(f"{store} already has a thousand archives named {self.path.name}")


def link_or_copy(source: Path, target: Path) -> None:
    """Link ``target`` to ``source``, or copy it where Windows does not allow links."""
    try:
        target.symlink_to(source.resolve())
    except OSError:
        if os.name != "nt":
            raise
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy2(source, target)


def sources_in(store: Path) -> list[ModelSource]:
    """Return every archive and model folder of a model store that ``load_models=all`` loads."""
    paths = (path for path in sorted(store.iterdir()) if not path.name.startswith("."))
    return [ModelSource(path) for path in paths if path.is_dir() or path.name.endswith(SUFFIXES)]


def sources_of(load_models: str, store: Path) -> list[ModelSource]:
    """Return what the setting ``load_models`` names in a model store, without the entries that are URLs."""
    if load_models.strip().lower() == ALL:
        return sources_in(store)
    pairs: Iterable[tuple[str, str, str]] = (entry.strip().rpartition("=") for entry in load_models.split(","))
    return [ModelSource(store / file, alias or None) for alias, _, file in pairs if file and not URL.match(file)]
