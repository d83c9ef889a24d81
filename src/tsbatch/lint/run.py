"""One run of lint: finds the files, reads each for what it is, and applies the rules."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tsbatch.archive.model_store import MANIFEST
from tsbatch.configuration.known_settings import MODEL_CONFIG
from tsbatch.errors import UsageError
from tsbatch.lint.archive_file import ArchiveFile, read_archive
from tsbatch.lint.documents import Document, Machine, Source
from tsbatch.lint.findings import Finding, in_order
from tsbatch.lint.handler_file import HandlerFile, looks_like_handler, read_handler
from tsbatch.lint.properties_file import PropertiesFile, read_properties
from tsbatch.lint.registry import all_rules
from tsbatch.lint.rules.archive_manifest import RequirementsFile
from tsbatch.lint.rules.cross_file import Together, load_entries
from tsbatch.lint.rules.emitted_metrics import Emitted
from tsbatch.lint.yaml_file import MetricsFile, ModelConfigFile, read_yaml

SKIPPED = {"__pycache__", "node_modules", "logs", "site-packages"}
ARCHIVES = (".mar", ".model", ".tar.gz", ".tgz")
YAML = (".yaml", ".yml")
LARGEST = 4 << 20


@dataclass
class Reader:
    """Collects the documents behind the paths that were given.

    Attributes:
        machine: what the rules need to know of the machine.
        documents: what was read, in order.
    """

    machine: Machine
    documents: list[Document] = field(default_factory=list)

    def take(self, path: Path) -> None:
        """One path that somebody named: a file, or a folder with everything below it.

        Raises:
            UsageError: there is no such path, or a file is of no kind that lint knows.
        """
        if not path.exists():
            raise UsageError(f"{path}: there is no such file or folder")
        if path.is_dir():
            self._take_folder(path)
        elif not self._take_file(path, named=True):
            kinds = "a .properties, .yaml, .py or requirements file, or an archive (.mar, .tar.gz)"
            raise UsageError(f"{path}: lint does not know this kind of file; expected {kinds}")

    def _take_folder(self, path: Path) -> None:
        for folder, below, files in os.walk(path):
            here = Path(folder)
            if (here / MANIFEST).is_file():
                self._take_archive(here)
                below.clear()
                continue
            below[:] = sorted(
                name
                for name in below
                if name not in SKIPPED and not name.startswith(".") and not (here / name / "pyvenv.cfg").exists()
            )
            for name in sorted(files):
                self._take_file(here / name, named=False)

    def _take_file(self, path: Path, *, named: bool) -> bool:
        if path.name.endswith(ARCHIVES):
            self._take_archive(path)
            return True
        if path.stat().st_size > LARGEST:
            return False
        document = self._read(Source(path.as_posix(), path.read_bytes(), path), named=named)
        if document is not None:
            self.documents.append(document)
        return document is not None

    def _read(self, source: Source, *, named: bool) -> Document | None:
        name = source.name.lower()
        if name.endswith(".properties"):
            return self._properties(source)
        if name.endswith(YAML):
            return self._yaml(source, named=named)
        if name.endswith(".py"):
            handler = read_handler(source, self.machine)
            return handler if named or looks_like_handler(handler) else None
        if name.endswith(".txt") and "requirements" in name:
            return RequirementsFile(source, self.machine)
        return None

    def _properties(self, source: Source) -> PropertiesFile:
        try:
            return read_properties(source, self.machine)
        except ValueError as error:
            raise UsageError(f"{source.path} is no .properties file: {error}") from None

    def _yaml(self, source: Source, *, named: bool) -> Document | None:
        metrics = read_yaml(source, self.machine, MetricsFile)
        keys = metrics.mapping().keys()
        if "metrics" in source.name.lower() or keys & {"ts_metrics", "model_metrics"}:
            return metrics
        config = source.name.lower().replace("_", "-").startswith("model-config")
        if named or config or keys & MODEL_CONFIG.keys():
            return read_yaml(source, self.machine, ModelConfigFile)
        return None

    def _take_archive(self, path: Path) -> None:
        archive = read_archive(path, path.as_posix(), self.machine)
        self.documents += [archive, *self._inner(archive)]

    def _inner(self, archive: ArchiveFile) -> Iterator[Document]:
        config = archive.config_file()
        if config is not None:
            yield replace(config, source=self._source(archive, str(archive.config_name)))
        module = str(archive.manifest.get("handler") or "").split(":")[0].replace("\\", "/").rpartition("/")[2]
        name = f"{module.removesuffix('.py')}.py"
        if name in archive.texts:
            yield read_handler(self._source(archive, name), self.machine)
        needs = str(archive.manifest.get("requirementsFile") or "")
        if needs in archive.texts:
            yield RequirementsFile(self._source(archive, needs), self.machine)

    def _source(self, archive: ArchiveFile, name: str) -> Source:
        real = archive.where / name if archive.where.is_dir() else None
        return Source(archive.inside(name), archive.texts[name], real)


def lint(paths: Sequence[Path], *, machine: Machine | None = None, ignore: Collection[str] = ()) -> list[Finding]:
    """Everything that the rules find in these files and folders, by themselves and together.

    Args:
        paths: files and folders.
        machine: where the server will run; this machine when left out.
        ignore: ids of rules that are not applied.

    Raises:
        UsageError: a path or a rule that does not exist, or a file of no known kind.
    """
    rules = all_rules()
    for name in ignore:
        if name not in rules:
            raise UsageError(f"--ignore {name}: there is no such rule; tsbatch lint --rules lists them")
    documents = read(paths, machine or Machine())
    wanted = [rule for rule in rules.values() if rule.id not in ignore]
    found = [
        finding
        for document in documents
        for rule in wanted
        if type(document) is rule.kind
        for finding in rule.look_at(document)
    ]
    return in_order(list(dict.fromkeys(found)))


def read(paths: Sequence[Path], machine: Machine) -> list[Document]:
    """The documents behind these paths, with one more for each server: it and its archives together."""
    reader = Reader(machine)
    for path in paths:
        reader.take(path)
    documents = list({(type(each), each.path): each for each in reader.documents}.values())
    return documents + [
        each for file in documents if isinstance(file, PropertiesFile) for each in _sets(file, documents)
    ]


def _sets(config: PropertiesFile, documents: Sequence[Document]) -> Iterator[Document]:
    aliases = {Path(file).name: alias for alias, file in load_entries(config.values.get("load_models", ""))}
    archives = tuple(
        replace(each, alias=aliases.get(each.where.name)) for each in documents if isinstance(each, ArchiveFile)
    )
    yield Together(config.source, config.machine, config, archives)
    wanted = config.values.get("metrics_config", "").replace("\\", "/").rpartition("/")[2]
    metrics = next((each for each in documents if isinstance(each, MetricsFile) and each.source.name == wanted), None)
    if metrics or not wanted:
        handlers = tuple(each for each in documents if isinstance(each, HandlerFile))
        yield Emitted(config.source, config.machine, config, handlers, metrics)
