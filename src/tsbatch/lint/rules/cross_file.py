"""Rules for one server as a whole: its config.properties together with the archives it may serve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tsbatch.archive.model_store import ALL, URL
from tsbatch.configuration.effective_settings import Deployment, Setting, effective
from tsbatch.errors import UsageError
from tsbatch.lint.archive_file import ArchiveFile
from tsbatch.lint.documents import Document
from tsbatch.lint.findings import Issue
from tsbatch.lint.properties_file import PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.models_json import entries
from tsbatch.lint.rules.shared_checks import IGNORED, short_queue
from tsbatch.lint.rules.yaml_capacity import on_gpu, threads_of

FIRST_ONLY = ("kserve", "kservev2")
"""Envelopes that read only the first request of a batch."""
TIMEOUTS = {"responseTimeout": "default_response_timeout", "startupTimeout": "default_startup_timeout"}


@dataclass(frozen=True)
class ServerFiles(Document):
    """One server: its config.properties, and the archives it may serve.

    Attributes:
        config: its config.properties.
        archives: the archives that were given with it, under the names it serves them by.
    """

    config: PropertiesFile
    archives: tuple[ArchiveFile, ...]

    def settings(self, archive: ArchiveFile) -> dict[str, Setting]:
        """Return the effective settings of an archive; empty if TorchServe could not load it (other rules say so)."""
        deployment = Deployment(
            name=archive.model,
            version=archive.version,
            config=archive.config(),
            properties=self.config.values,
            api=None if loaded_at_start(archive, self.config.values.get("load_models", "")) else {},
            cores=self.machine.cores,
        )
        try:
            return {setting.name: setting for setting in effective(deployment)}
        except UsageError:
            return {}

    def line(self, key: str) -> int:
        """Return the line of a key of config.properties; 1 if it is not set."""
        pair = self.config.last(key)
        return pair.line if pair else 1

    def store(self) -> Path | None:
        """Return the model store, if it can be found from here."""
        name, real = self.config.values.get("model_store"), self.source.real
        folders = [Path(name), real.parent / name] if name and real else []
        return next((folder for folder in folders if folder.is_dir()), None)


def load_entries(load_models: str) -> list[tuple[str | None, str]]:
    """Return (alias, file) of each archive that ``load_models`` names individually; empty for ``all``."""
    if load_models.strip().lower() in {ALL, "none", ""}:
        return []
    pairs = (entry.strip().rpartition("=") for entry in load_models.split(","))
    return [(alias or None, file) for alias, _, file in pairs if file]


def loaded_at_start(archive: ArchiveFile, load_models: str) -> bool:
    """Return whether the server loads an archive at startup."""
    files = {Path(file).name for _, file in load_entries(load_models)}
    return load_models.strip().lower() == ALL or archive.where.name in files


@rule("set-models-name", ServerFiles, "error")
def models_name(file: ServerFiles) -> Iterator[Issue]:
    """models={} for a model that does not exist.

    An entry applies to the model with exactly this name: the manifest's modelName, or the alias in load_models.
    """
    names = sorted({archive.model for archive in file.archives})
    for entry in entries(file.config):
        if names and entry.name not in names:
            message = f"models: no archive here serves {entry.name}; available: {', '.join(names)}"
            yield Issue(entry.line, message, IGNORED, f'"{names[0]}": ...')


@rule("set-models-version", ServerFiles, "error")
def models_version(file: ServerFiles) -> Iterator[Issue]:
    """models={} for a version that does not exist.

    An entry applies to exactly the version in the manifest: "1" is not "1.0".
    """
    for entry in entries(file.config):
        versions = sorted({archive.version for archive in file.archives if archive.model == entry.name})
        if versions and entry.version not in versions:
            message = f"models: {entry.name} has no version {entry.version}; the archive has {', '.join(versions)}"
            yield Issue(entry.line, message, IGNORED, f'"{versions[0]}": ...')


@rule("set-models-shadowed", ServerFiles, "warning")
def models_shadowed(file: ServerFiles) -> Iterator[Issue]:
    """models={} that model-config.yaml overrides.

    The archive's model-config.yaml overrides models={}; if the archive has any YAML, the timeouts of models={} never
    apply.
    """
    for entry in entries(file.config):
        for archive in file.archives:
            if (archive.model, archive.version) != (entry.name, entry.version):
                continue
            effective_settings = file.settings(archive)
            for key in entry.settings.keys() & effective_settings.keys():
                setting, value = effective_settings[key], entry.settings[key]
                if setting.layer == "model-config.yaml" and str(setting.value) != str(value):
                    message = f"{entry}: {key} {value} has no effect"
                    effect = f"TorchServe uses {setting.value}, from the archive's model-config.yaml"
                    yield Issue(entry.line, message, effect, f"in model-config.yaml: {key}: {value}")


@rule("set-timeouts-ignored", ServerFiles, "error")
def timeouts_ignored(file: ServerFiles) -> Iterator[Issue]:
    """A default timeout that an archive ignores.

    default_response_timeout and default_startup_timeout apply only to archives without a model-config.yaml: with a YAML
    that lacks the timeouts, they are 120 s.
    """
    for archive in file.archives:
        config = archive.config()
        for key, default in TIMEOUTS.items():
            value = file.config.values.get(default)
            if config is not None and key not in config and value not in (None, "120"):
                effect = f"TorchServe uses 120 s for {archive.model}: its model-config.yaml has no {key}"
                message = f"{default}={value} does not apply to {archive.model}"
                yield Issue(file.line(default), message, effect, f"in model-config.yaml: {key}: {value}")


@rule("set-queue-short", ServerFiles, "warning")
def queue_short(file: ServerFiles) -> Iterator[Issue]:
    """A queue that is too short for a model's batches.

    Requests beyond job_queue_size (100) get 503. To fill every worker's batch while another one waits, the queue needs
    room for 2 x batchSize x workers requests.
    """
    for archive in file.archives:
        found = file.settings(archive)
        if not found or found["jobQueueSize"].layer == "model-config.yaml" or found["batchSize"].layer == "models={}":
            continue
        queue, batch, workers = (int(found[key].value) for key in ("jobQueueSize", "batchSize", "maxWorkers"))
        line, subject = file.line("job_queue_size"), f"{archive.model}: job_queue_size {queue}"
        yield from short_queue(line, subject, queue, batch, max(1, workers), "job_queue_size=")


@rule("set-envelope", ServerFiles, "error")
def envelope(file: ServerFiles) -> Iterator[Issue]:
    """An envelope that breaks batching.

    The envelopes kserve and kservev2 read only the first request of a batch: every batch of two or more fails with
    'number of batch response mismatched'.
    """
    name = file.config.values.get("service_envelope", "").strip()
    sizes: list[tuple[str, object]] = [
        (archive.model, setting.value)
        for archive in file.archives
        if (setting := file.settings(archive).get("batchSize"))
    ]
    sizes += [(entry.name, entry.settings.get("batchSize")) for entry in entries(file.config)]
    batched = sorted({model for model, size in sizes if isinstance(size, int) and size > 1})
    if name in FIRST_ONLY and batched:
        effect = "every batch of two or more requests gets 503"
        message = f"service_envelope={name} cannot batch, and {', '.join(batched)} has batchSize above 1"
        yield Issue(file.line("service_envelope"), message, effect, "remove service_envelope")


@rule("set-threads", ServerFiles, "warning")
def threads(file: ServerFiles) -> Iterator[Issue]:
    """Models whose threads together exceed the cores.

    All models of a server share its cores. Each model's threads are its workers x the threads of one worker.
    """
    parts = []
    for archive in file.archives:
        config, found = archive.config() or {}, file.settings(archive)
        number = threads_of(config)
        if number and found and not on_gpu(config):
            parts.append((archive.model, int(found["minWorkers"].value) * number))
    total, cores = sum(number for _, number in parts), file.machine.cores
    if len(parts) > 1 and total > cores and all(number <= cores for _, number in parts):
        sums = " + ".join(f"{model} {number}" for model, number in parts)
        message = f"{total} threads on {cores} cores ({sums})"
        yield Issue(file.line("load_models"), message, "the models compete for the cores", "threads: 1")


@rule("set-load-models", ServerFiles, "error")
def load_models(file: ServerFiles) -> Iterator[Issue]:
    """load_models names a file that does not exist.

    TorchServe logs a warning and starts without the model.
    """
    store, given = file.store(), {archive.where.name for archive in file.archives}
    if store is None and not given:
        return
    for _, name in load_entries(file.config.values.get("load_models", "")):
        exists = name in given or (store is not None and (store / name).exists())
        if not exists and not URL.match(name):
            where = f"in the model store {store}" if store else "among the given archives"
            message = f"load_models: {name} is not {where}"
            yield Issue(file.line("load_models"), message, "TorchServe starts without it", ", ".join(sorted(given)))


@rule("set-same-model", ServerFiles, "error")
def same_model(file: ServerFiles) -> Iterator[Issue]:
    """Two archives with the same name and version.

    TorchServe keeps one model for each name and version and refuses the second registration (409; at startup it logs a
    warning).
    """
    seen: dict[tuple[str, str], ArchiveFile] = {}
    for archive in file.archives:
        first = seen.setdefault((archive.model, archive.version), archive)
        if first is not archive and archive.manifest:
            message = f"{archive.path} and {first.path} are both {archive.model} {archive.version}"
            right = "package one of them with another --version"
            yield Issue(file.line("load_models"), message, "TorchServe refuses the second one", right)


@rule("set-requirements", ServerFiles, "warning")
def requirements(file: ServerFiles) -> Iterator[Issue]:
    """Requirements that are not installed.

    TorchServe installs the requirements of an archive only with install_py_dep_per_model=true; otherwise the worker
    dies at the first import of a missing package.
    """
    for archive in file.archives:
        name = archive.named("requirementsFile")
        packages = re.search(rb"^\s*[A-Za-z0-9]", archive.texts.get(name, b""), re.MULTILINE)
        if packages and not file.config.is_true("install_py_dep_per_model"):
            message = f"{archive.model} has {name}, and install_py_dep_per_model is off"
            effect = "TorchServe installs nothing; a missing package ends the worker"
            yield Issue(file.line("install_py_dep_per_model"), message, effect, "install_py_dep_per_model=true")


@rule("set-snapshot", ServerFiles, "warning")
def snapshot(file: ServerFiles) -> Iterator[Issue]:
    """Snapshots that override the file.

    If TorchServe is started without --ts-config and without --ncs, it reads the newest file in logs/config instead of
    config.properties.
    """
    folder = file.source.real.parent / "logs" / "config" if file.source.real else None
    found = sorted(folder.glob("*.cfg")) if folder else []
    if found:
        message = f"there are {len(found)} snapshots in logs/config"
        effect = f"TorchServe starts with {found[-1].name} instead of this file, unless --ts-config or --ncs is given"
        yield Issue(1, message, effect, "torchserve --start --ncs --ts-config config.properties")
