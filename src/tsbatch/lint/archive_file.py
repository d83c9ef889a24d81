"""A model archive as lint sees it: its file names, manifest and small text files; weights are not read."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tsbatch.archive.manifest import MANIFEST_NAME, json_object
from tsbatch.archive.members import UNREADABLE, members
from tsbatch.lint.documents import Document, Machine, Source
from tsbatch.lint.yaml_file import ModelConfigFile, read_yaml

TEXT_SUFFIXES = (".py", ".yaml", ".yml", ".txt", ".json")
MAX_TEXT_BYTES = 1 << 20


@dataclass(frozen=True)
class ArchiveFile(Document):
    """A ``.mar``, a ``.tar.gz`` or a folder with a manifest.

    Attributes:
        where: its path.
        texts: content of the small text files, by path inside.
        names: the paths of all files inside.
        problem: why it could not be read; empty if it could.
        alias: the name that ``load_models`` gives it.
    """

    where: Path
    texts: Mapping[str, bytes]
    names: frozenset[str]
    problem: str = ""
    alias: str | None = None

    @property
    def manifest(self) -> dict[str, Any]:
        """The section ``model`` of the manifest; empty if there is none or it cannot be read."""
        model = json_object(self.texts.get(MANIFEST_NAME, b"")).get("model")
        return model if isinstance(model, dict) else {}

    def named(self, key: str) -> str:
        """Return what the manifest has under a key; empty if nothing."""
        return str(self.manifest.get(key) or "")

    @property
    def handler_module(self) -> str:
        """The name of the handler's module; empty if the manifest names none."""
        return re.split(r"[/\\]", self.named("handler").split(":")[0])[-1].removesuffix(".py")

    @property
    def model(self) -> str:
        """The name that TorchServe serves it under."""
        return self.alias or self.named("modelName") or self.where.stem

    @property
    def version(self) -> str:
        """The manifest's version, or TorchServe's default 1.0."""
        version = self.manifest.get("modelVersion")
        return "1.0" if version is None else str(version)

    def config_file(self) -> ModelConfigFile | None:
        """Return the YAML that TorchServe reads, which the manifest calls configFile; None if it reads none."""
        name = self.named("configFile")
        if name not in self.texts:
            return None
        file = read_yaml(self.inner(name), self.machine, ModelConfigFile)
        assert isinstance(file, ModelConfigFile)
        return file

    def config(self) -> dict[str, Any] | None:
        """Return that YAML as a mapping; None if TorchServe reads none."""
        file = self.config_file()
        return None if file is None else file.mapping()

    def inner(self, name: str) -> Source:
        """Return one of the text files inside."""
        if self.where.is_dir():
            return Source(f"{self.path}/{name}", self.texts[name], self.where / name)
        return Source(f"{self.path}!{name}", self.texts[name])


def read_archive(path: Path, shown: str, machine: Machine, alias: str | None = None) -> ArchiveFile:
    """Read the names and the small text files of an archive; a read error becomes its ``problem``."""
    texts, names = {}, set()
    try:
        for member in members(path, is_zip=zipfile.is_zipfile(path)):
            names.add(member.name)
            if member.name.endswith(TEXT_SUFFIXES) and member.size <= MAX_TEXT_BYTES:
                texts[member.name] = member.read()
        problem = "" if MANIFEST_NAME in names else f"there is no {MANIFEST_NAME} in it"
    except UNREADABLE as error:
        texts, names, problem = {}, set(), " ".join(str(error).split()) or type(error).__name__
    return ArchiveFile(Source(shown, b"", path), machine, path, texts, frozenset(names), problem, alias)
