"""One run of lint: find the files, parse each one, and apply the rules."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tsbatch.archive.manifest import MANIFEST_NAME
from tsbatch.configuration.known_settings import MODEL_CONFIG
from tsbatch.errors import UsageError
from tsbatch.lint.archive_file import ArchiveFile, read_archive
from tsbatch.lint.documents import Document, Machine, Source
from tsbatch.lint.findings import Finding
from tsbatch.lint.handler_file import HandlerFile, looks_like_handler, read_handler
from tsbatch.lint.properties_file import PropertiesFile, read_properties
from tsbatch.lint.registry import all_rules
from tsbatch.lint.rules.archive_manifest import RequirementsFile
from tsbatch.lint.rules.cross_file import ServerFiles, load_entries
from tsbatch.lint.rules.emitted_metrics import EmittedMetrics
from tsbatch.lint.yaml_file import MetricsFile, ModelConfigFile, read_yaml

SKIPPED = {"__pycache__", "node_modules", "logs", "site-packages"}
ARCHIVE_SUFFIXES = (".mar", ".model", ".tar.gz", ".tgz")
MAX_BYTES = 4 << 20


@dataclass
class Reader:
    """Collects the documents of the given paths.

    Attributes:
        machine: what the rules need to know about the machine.
        documents: the documents, in order.
    """

    machine: Machine
    documents: list[Document] = field(default_factory=list)

    def add(self, path: Path) -> None:
        """Add a path that the user named: a file, or a folder with everything below it.

        Raises:
            UsageError: the path does not exist, or the file is of a kind that lint does not know.
        """
        if not path.exists():
            raise UsageError(f"{path}: there is no such file or folder")
        if path.is_dir():
            self._add_folder(path)
        elif not self._add_file(path, named=True):
            kinds = "a .properties, .yaml, .py or requirements file, or an archive (.mar, .tar.gz)"
            raise UsageError(f"{path}: lint does not know this kind of file; expected {kinds}")

    def _add_folder(self, path: Path) -> None:
        for folder, below, files in os.walk(path):
            here = Path(folder)
            if (here / MANIFEST_NAME).is_file():
                self._add_archive(here)
                below.clear()
                continue
            below[:] = sorted(
                name
                for name in below
                if name not in SKIPPED and not name.startswith(".") and not (here / name / "pyvenv.cfg").exists()
            )
            for name in sorted(files):
                self._add_file(here / name, named=False)

    def _add_file(self, path: Path, *, named: bool) -> bool:
        if path.name.endswith(ARCHIVE_SUFFIXES):
            self._add_archive(path)
            return True
        if path.stat().st_size > MAX_BYTES:
            return False
        document = self._read(Source(path.as_posix(), path.read_bytes(), path), named=named)
        if document is not None:
            self.documents.append(document)
        return document is not None

    def _read(self, source: Source, *, named: bool) -> Document | None:
        name = source.name.lower()
        if name.endswith(".properties"):
            return self._properties(source)
        if name.endswith((".yaml", ".yml")):
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
            raise UsageError(f"{source.path} is not a valid .properties file: {error}") from None

    def _yaml(self, source: Source, *, named: bool) -> Document | None:
        metrics = read_yaml(source, self.machine, MetricsFile)
        keys = metrics.mapping().keys()
        if "metrics" in source.name.lower() or keys & {"ts_metrics", "model_metrics"}:
            return metrics
        config = source.name.lower().replace("_", "-").startswith("model-config")
        if named or config or keys & MODEL_CONFIG.keys():
            return read_yaml(source, self.machine, ModelConfigFile)
        return None

    def _add_archive(self, path: Path) -> None:
        archive = read_archive(path, path.as_posix(), self.machine)
        self.documents.append(archive)
        if (config := archive.config_file()) is not None:
            self.documents.append(config)
        if (handler := f"{archive.handler_module}.py") in archive.texts:
            self.documents.append(read_handler(archive.inner(handler), self.machine))
        if (requirements := archive.named("requirementsFile")) in archive.texts:
            self.documents.append(RequirementsFile(archive.inner(requirements), self.machine))


def lint(paths: Sequence[Path], *, machine: Machine | None = None, ignore: Collection[str] = ()) -> list[Finding]:
    """Return everything that the rules find in these files and folders, individually and in combination.

    Args:
        paths: files and folders.
        machine: the machine that will run the server; this machine by default.
        ignore: ids of rules to skip.

    Raises:
        UsageError: a path or a rule does not exist, or a file is of an unknown kind.
    """
    rules = all_rules()
    for name in ignore:
        if name not in rules:
            raise UsageError(f"--ignore {name}: there is no such rule; tsbatch lint --rules lists them")
    findings = {
        finding: None
        for document in _read(paths, machine or Machine())
        for rule in rules.values()
        if type(document) is rule.kind and rule.id not in ignore
        for finding in rule.apply(document)
    }
    return sorted(findings, key=lambda finding: (finding.file, finding.line, finding.rule))


def _read(paths: Sequence[Path], machine: Machine) -> list[Document]:
    """The documents of these paths, and for each server the document of what belongs to it."""
    reader = Reader(machine)
    for path in paths:
        reader.add(path)
    documents = list({(type(each), each.path): each for each in reader.documents}.values())
    servers = [file for file in documents if isinstance(file, PropertiesFile)]
    return documents + [each for file in servers for each in _server_documents(file, documents)]


def _server_documents(config: PropertiesFile, documents: Sequence[Document]) -> Iterator[Document]:
    aliases = {Path(file).name: alias for alias, file in load_entries(config.values.get("load_models", ""))}
    archives = tuple(
        replace(each, alias=aliases.get(each.where.name)) for each in documents if isinstance(each, ArchiveFile)
    )
    yield ServerFiles(config.source, config.machine, config, archives)
    wanted = config.values.get("metrics_config", "").replace("\\", "/").rpartition("/")[2]
    metrics = next((each for each in documents if isinstance(each, MetricsFile) and each.source.name == wanted), None)
    if metrics or not wanted:
        handlers = tuple(each for each in documents if isinstance(each, HandlerFile))
        yield EmittedMetrics(config.source, config.machine, config, handlers, metrics)
