"""Which models a server is asked to serve: their files, names and versions."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsbatch.errors import UsageError

MANIFEST = "MAR-INF/MANIFEST.json"
URL = re.compile(r"^[a-z][a-z0-9+]+://", re.IGNORECASE)
ALL = "all"
ZIPS = {".mar"}
ENDINGS = (".mar", ".model", ".tar.gz")
"""Files that ``load_models=all`` takes, beside folders (ModelServer.java)."""

BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """An archive or unpacked model folder on this machine.

    Attributes:
        path: where it lies.
        alias: the name to serve it under, when the person gave one.
    """

    path: Path
    alias: str | None = None

    @classmethod
    def parse(cls, text: str | Path) -> ModelSource:
        """``FILE`` or ``NAME=FILE``.

        Raises:
            UsageError: when there is no such file, or it is no archive.
        """
        whole = Path(text)
        alias, equals, rest = str(text).partition("=")
        path, name = (Path(rest), alias) if equals and not whole.exists() else (whole, None)
        if not path.exists():
            raise UsageError(f"no such archive: {path}")
        source = cls(path.absolute(), name)
        source._manifest()  # a server would tell it late, and in other words
        return source

    @property
    def name(self) -> str:
        """The name it will be served under."""
        # TorchServe's own rule for a manifest without a name (ModelServer.getDefaultModelName).
        fallback = re.sub(r"(\W|^_)", "_", self.path.name.removesuffix(".mar").removesuffix(".model"))
        return str(self.alias or self._manifest().get("modelName") or fallback)

    @property
    def version(self) -> str | None:
        """Its version, when the manifest has one."""
        version = self._manifest().get("modelVersion")
        return None if version is None else str(version)

    @property
    def requirements(self) -> str | None:
        """Its requirements file, when the manifest names one."""
        file = self._manifest().get("requirementsFile")
        return None if file is None else str(file)

    def _manifest(self) -> dict[str, Any]:
        try:
            model: dict[str, Any] = json.loads(manifest_text(self.path))["model"]
        except (OSError, EOFError, KeyError, ValueError, TypeError, *BROKEN) as error:
            raise UsageError(f"{self.path} is no model archive: {error}") from error
        return model

    def link_into(self, store: Path) -> str:
        """Make it available in a model store of ours; its file name there."""
        name = self.path.name
        for number in range(1000):
            target = store / name
            if target.exists() and target.resolve() == self.path.resolve():
                return name
            if not target.exists() and not target.is_symlink():
                place(self.path, target)
                return name
            ending = ".tar.gz" if self.path.name.endswith(".tar.gz") else self.path.suffix
            name = f"{self.path.name.removesuffix(ending)}-{number + 2}{ending}"
        raise UsageError(f"a thousand archives named {self.path.name} are in {store}")


def manifest_text(path: Path) -> bytes:
    """The manifest in an archive or a model folder, as it is.

    Raises:
        OSError, EOFError, KeyError: it cannot be read, or has no manifest; or one of BROKEN.
    """
    if path.is_dir():
        return (path / MANIFEST).read_bytes()
    if path.suffix in ZIPS:
        with zipfile.ZipFile(path) as archive:
            return archive.read(MANIFEST)
    with tarfile.open(path, "r|gz") as packed:
        for entry in packed:
            # TorchServe takes a file that is not called .mar for one of these, and drops the first folder's name.
            if entry.name.partition("/")[2] == MANIFEST and (stream := packed.extractfile(entry)) is not None:
                return stream.read()
    raise KeyError(f"there is no {MANIFEST} in it")


def place(source: Path, target: Path) -> None:
    """Link ``target`` to ``source``, or copy it where links are not allowed."""
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
    """Every archive and model folder of a model store, as ``load_models=all`` takes them."""
    found = (path for path in sorted(store.iterdir()) if not path.name.startswith("."))
    return [ModelSource(path) for path in found if path.is_dir() or path.name.endswith(ENDINGS)]


def sources_of(load_models: str, store: Path) -> list[ModelSource]:
    """What the setting ``load_models`` names in a model store; entries that come from a URL are left out."""
    if load_models.strip().lower() == ALL:
        return sources_in(store)
    pairs: Iterable[tuple[str, str, str]] = (entry.strip().rpartition("=") for entry in load_models.split(","))
    return [ModelSource(store / file, alias or None) for alias, _, file in pairs if file and not URL.match(file)]
