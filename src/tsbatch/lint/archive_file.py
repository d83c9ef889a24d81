"""A model archive as lint sees it: the names in it, its manifest, and the small texts; weights are not read."""

from __future__ import annotations

import json
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsbatch.archive.model_store import MANIFEST, ModelSource
from tsbatch.lint.documents import Document, Machine, Source
from tsbatch.lint.yaml_file import ModelConfigFile, read_yaml

TEXTS = (".py", ".yaml", ".yml", ".txt", ".json")
LARGEST_TEXT = 1 << 20
BROKEN = (OSError, EOFError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error, RuntimeError)


@dataclass(frozen=True)
class ArchiveFile(Document):
    """A ``.mar``, a ``.tar.gz`` or a folder with a manifest.

    Attributes:
        where: its path.
        texts: path inside: content, of small texts.
        names: every file's path inside.
        problem: why it could not be read; empty when it could.
        alias: the name that ``load_models`` gives it.
    """

    where: Path
    texts: Mapping[str, bytes]
    names: frozenset[str]
    problem: str = ""
    alias: str | None = None

    @property
    def manifest(self) -> dict[str, Any]:
        """The section ``model`` of the manifest; empty when there is none that can be read."""
        try:
            model = json.loads(self.texts.get(MANIFEST, b"{}"))["model"]
        except (ValueError, KeyError, TypeError):
            return {}
        return model if isinstance(model, dict) else {}

    @property
    def model(self) -> str:
        """The name it is served under, by TorchServe's own rules."""
        return str(self.alias or self.manifest.get("modelName") or ModelSource(self.where, self.where.stem).name)

    @property
    def version(self) -> str:
        """The manifest's version, or TorchServe's 1.0."""
        found = self.manifest.get("modelVersion")
        return "1.0" if found is None else str(found)

    @property
    def config_name(self) -> str | None:
        """The YAML that TorchServe reads: what the manifest calls configFile."""
        name = self.manifest.get("configFile")
        return str(name) if name and str(name) in self.texts else None

    def config_file(self) -> ModelConfigFile | None:
        """That YAML, parsed; None when TorchServe reads none."""
        if self.config_name is None:
            return None
        source = Source(self.inside(self.config_name), self.texts[self.config_name])
        read = read_yaml(source, self.machine, ModelConfigFile)
        assert isinstance(read, ModelConfigFile)
        return read

    def config(self) -> dict[str, Any] | None:
        """That YAML as a mapping; None when TorchServe reads none."""
        file = self.config_file()
        return None if file is None else file.mapping()

    def inside(self, name: str) -> str:
        """How a file inside is shown."""
        return f"{self.path}/{name}" if self.where.is_dir() else f"{self.path}!{name}"


def read_archive(path: Path, shown: str, machine: Machine, alias: str | None = None) -> ArchiveFile:
    """Reads the names and the small texts of an archive; what is wrong with it becomes its ``problem``."""
    source = Source(shown, b"", path)
    try:
        texts, names = _read(path)
    except BROKEN as error:
        why = " ".join(str(error).split()) or type(error).__name__
        return ArchiveFile(source, machine, path, {}, frozenset(), why, alias)
    problem = "" if MANIFEST in names else f"there is no {MANIFEST} in it"
    return ArchiveFile(source, machine, path, texts, frozenset(names), problem, alias)


def _read(path: Path) -> tuple[dict[str, bytes], set[str]]:
    if path.is_dir():
        found = {file.relative_to(path).as_posix(): file for file in sorted(path.rglob("*")) if file.is_file()}
        texts = {name: file.read_bytes() for name, file in found.items() if _is_text(name, file.stat().st_size)}
        return texts, set(found)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            texts = {each.filename: archive.read(each) for each in entries if _is_text(each.filename, each.file_size)}
            return texts, {entry.filename for entry in entries}
    return _read_tar(path)


def _read_tar(path: Path) -> tuple[dict[str, bytes], set[str]]:
    texts, names = {}, set()
    with tarfile.open(path, "r|gz") as packed:
        for entry in packed:
            # TorchServe drops the first folder's name.
            name = entry.name.partition("/")[2]
            if entry.isreg() and name:
                names.add(name)
                stream = packed.extractfile(entry) if _is_text(name, entry.size) else None
                if stream is not None:
                    texts[name] = stream.read()
    return texts, names


def _is_text(name: str, size: int) -> bool:
    return name.endswith(TEXTS) and size <= LARGEST_TEXT
