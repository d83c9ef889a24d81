"""Rules over the set: a server's config.properties with the archives, handlers and metrics files beside it."""

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
from tsbatch.lint.findings import Found
from tsbatch.lint.properties_file import PropertiesFile
from tsbatch.lint.registry import rule
from tsbatch.lint.rules.models_json import entries
from tsbatch.lint.rules.yaml_capacity import on_gpu, threads_of

FIRST_ONLY = ("kserve", "kservev2")
TIMEOUTS = {"responseTimeout": "default_response_timeout", "startupTimeout": "default_startup_timeout"}


@dataclass(frozen=True)
class Together(Document):
    """One server: its file, and the archives it may serve.

    Attributes:
        config: its config.properties.
        archives: the archives that were given with it, under the names it serves them by.
    """

    config: PropertiesFile
    archives: tuple[ArchiveFile, ...]

    def settings(self, archive: ArchiveFile) -> dict[str, Setting]:
        """What will hold for an archive; nothing where TorchServe could not load it, which other rules say."""
        try:
            found = effective(self.deployment(archive))
        except UsageError:
            return {}
        return {setting.name: setting for setting in found}

    def deployment(self, archive: ArchiveFile) -> Deployment:
        """The archive as this server would serve it."""
        return Deployment(
            name=archive.model,
            version=archive.version,
            config=archive.config(),
            properties=self.config.values,
            api=None if at_start(archive, self.config.values.get("load_models", "")) else {},
            cores=self.machine.cores,
        )

    def line(self, *keys: str) -> int:
        """The line of the first of these keys that the file has; 1 when it has none."""
        return next((pair.line for key in keys if (pair := self.config.last(key))), 1)

    def store(self) -> Path | None:
        """The model store, where it can be found from here."""
        name, real = self.config.values.get("model_store"), self.source.real
        places = [Path(name), real.parent / name] if name and real else []
        return next((place for place in places if place.is_dir()), None)


def load_entries(load_models: str) -> list[tuple[str | None, str]]:
    """(alias, file) of each archive that ``load_models`` names one by one; none for ``all``."""
    if load_models.strip().lower() in {ALL, "none", ""}:
        return []
    pairs = (entry.strip().rpartition("=") for entry in load_models.split(","))
    return [(alias or None, file) for alias, _, file in pairs if file]


def at_start(archive: ArchiveFile, load_models: str) -> bool:
    """Whether the server loads an archive when it starts."""
    files = {Path(file).name for _, file in load_entries(load_models)}
    return load_models.strip().lower() == ALL or archive.where.name in files


@rule(
    "set-models-name",
    Together,
    "error",
    "models={} for a model that there is not",
    "An entry counts for the model with exactly this name: the manifest's modelName, or the alias in load_models.",
)
def models_name(file: Together) -> Iterator[Found]:
    """A name in ``models={}`` that no archive has."""
    names = sorted({archive.model for archive in file.archives})
    for line, name, _, _ in entries(file.config):
        if names and name not in names:
            message = f"models: no archive here serves {name}; there are {', '.join(names)}"
            yield Found(line, message, "TorchServe ignores the entry without a word", f'"{names[0]}": ...')


@rule(
    "set-models-version",
    Together,
    "error",
    "models={} for a version that there is not",
    'An entry counts for exactly the version in the manifest: "1" is not "1.0".',
)
def models_version(file: Together) -> Iterator[Found]:
    """A version in ``models={}`` that no archive of this name has."""
    for line, name, version, _ in entries(file.config):
        versions = sorted({archive.version for archive in file.archives if archive.model == name})
        if versions and version not in versions:
            message = f"models: {name} has no version {version}; the archive says {', '.join(versions)}"
            yield Found(line, message, "TorchServe ignores the entry without a word", f'"{versions[0]}": ...')


@rule(
    "set-models-shadowed",
    Together,
    "warning",
    "models={} that model-config.yaml overrules",
    "What the archive's model-config.yaml says wins over models={}; with any YAML in the archive the time-outs of "
    "models={} never count.",
)
def models_shadowed(file: Together) -> Iterator[Found]:
    """A setting in ``models={}`` whose value does not hold."""
    for line, name, version, settings in entries(file.config):
        for archive in file.archives:
            if (archive.model, archive.version) != (name, version):
                continue
            holds = file.settings(archive)
            for key in settings.keys() & holds.keys():
                setting = holds[key]
                if setting.layer == "model-config.yaml" and str(setting.value) != str(settings[key]):
                    message = f"models: {name} {version}: {key} {settings[key]} does not count"
                    effect = f"TorchServe uses {setting.value}, from the archive's model-config.yaml"
                    yield Found(line, message, effect, f"in model-config.yaml: {key}: {settings[key]}")


@rule(
    "set-timeouts-ignored",
    Together,
    "error",
    "a default time-out that an archive ignores",
    "default_response_timeout and default_startup_timeout count for archives without a model-config.yaml alone: one "
    "with a YAML that lacks the time-outs has 120 s.",
)
def timeouts_ignored(file: Together) -> Iterator[Found]:
    """A default in the file, and an archive whose YAML pins 120 s."""
    for archive in file.archives:
        config = archive.config()
        for key, default in TIMEOUTS.items():
            value = file.config.values.get(default)
            if config is not None and key not in config and value not in (None, "120"):
                effect = f"TorchServe uses 120 s for {archive.model}: its model-config.yaml has no {key}"
                message = f"{default}={value} does not count for {archive.model}"
                yield Found(file.line(default), message, effect, f"in model-config.yaml: {key}: {value}")


@rule(
    "set-queue-short",
    Together,
    "warning",
    "a queue too short for a model's batches",
    "Requests beyond job_queue_size (100) get 503. To fill every worker's batch while another is waiting takes 2 x "
    "batchSize x workers places.",
)
def queue_short(file: Together) -> Iterator[Found]:
    """The queue that holds against the batch size and workers that hold."""
    for archive in file.archives:
        found = file.settings(archive)
        if not found or found["jobQueueSize"].layer == "model-config.yaml" or found["batchSize"].layer == "models={}":
            continue
        queue, batch, workers = (int(found[key].value) for key in ("jobQueueSize", "batchSize", "maxWorkers"))
        need = 2 * batch * max(1, workers)
        if queue < need:
            message = f"{archive.model}: a queue of {queue} is below 2 x batchSize {batch} x workers {max(1, workers)}"
            effect = "bursts get 503 while batches are not full"
            yield Found(file.line("job_queue_size"), message, effect, f"job_queue_size={need}")


@rule(
    "set-envelope",
    Together,
    "error",
    "an envelope that breaks batching",
    "The envelopes kserve and kservev2 read the first request of a batch alone: every batch of two or more fails with "
    "'number of batch response mismatched'.",
)
def envelope(file: Together) -> Iterator[Found]:
    """``service_envelope=kserve`` and a model with batchSize above 1."""
    name = file.config.values.get("service_envelope", "").strip()
    sizes = [(archive.model, file.settings(archive).get("batchSize")) for archive in file.archives]
    sizes += [
        (name, Setting("", size, "models={}"))
        for _, name, _, found in entries(file.config)
        if isinstance(size := found.get("batchSize"), int)
    ]
    batched = sorted({model for model, size in sizes if size and int(size.value) > 1})
    if name in FIRST_ONLY and batched:
        effect = "every batch of two or more requests gets 503"
        message = f"service_envelope={name} cannot batch, and {', '.join(batched)} has batchSize above 1"
        yield Found(file.line("service_envelope"), message, effect, "remove service_envelope")


@rule(
    "set-threads",
    Together,
    "warning",
    "models whose threads together exceed the cores",
    "All models of a server share its cores.",
)
def threads(file: Together) -> Iterator[Found]:
    """The sum of workers x threads over the models on the CPU."""
    parts = []
    for archive in file.archives:
        config, found = archive.config() or {}, file.settings(archive)
        number = threads_of(config)
        if number and found and not on_gpu(config):
            parts.append((archive.model, int(found["minWorkers"].value) * number))
    total = sum(number for _, number in parts)
    if len(parts) > 1 and total > file.machine.cores and all(number <= file.machine.cores for _, number in parts):
        what = " + ".join(f"{model} {number}" for model, number in parts)
        message = f"{total} threads on {file.machine.cores} cores ({what})"
        yield Found(file.line("load_models"), message, "the models take each other's cores", "threads: 1")


@rule(
    "set-load-models",
    Together,
    "error",
    "load_models names a file that is not there",
    "TorchServe writes a warning and starts without the model.",
)
def load_models(file: Together) -> Iterator[Found]:
    """A file that is neither in the model store nor among what was given."""
    store, given = file.store(), {archive.where.name for archive in file.archives}
    if store is None and not given:
        return
    for _, name in load_entries(file.config.values.get("load_models", "")):
        there = store is not None and (store / name).exists()
        if not there and name not in given and not URL.match(name):
            where = f"the model store {store}" if store else "what was given"
            message = f"load_models: {name} is not in {where}"
            near = ", ".join(sorted(given)) if given else ""
            yield Found(file.line("load_models"), message, "TorchServe starts without the model", near)


@rule(
    "set-same-model",
    Together,
    "error",
    "two archives of the same name and version",
    "TorchServe keeps one model for each name and version: the second registration is refused (409), at the start with "
    "a warning.",
)
def same_model(file: Together) -> Iterator[Found]:
    """The same name and version twice."""
    seen: dict[tuple[str, str], ArchiveFile] = {}
    for archive in file.archives:
        before = seen.setdefault((archive.model, archive.version), archive)
        if before is not archive and archive.manifest:
            message = f"{archive.path} and {before.path} are both {archive.model} {archive.version}"
            right = "package one of them with another --version"
            yield Found(file.line("load_models"), message, "TorchServe refuses the second one", right)


@rule(
    "set-requirements",
    Together,
    "warning",
    "requirements that are not installed",
    "TorchServe installs the requirements of an archive only with install_py_dep_per_model=true; otherwise the worker "
    "dies at the first import that is missing.",
)
def requirements(file: Together) -> Iterator[Found]:
    """An archive with requirements, and a server that does not install any."""
    for archive in file.archives:
        name = archive.manifest.get("requirementsFile")
        packages = re.findall(rb"^\s*[A-Za-z0-9]", archive.texts.get(str(name), b""), re.MULTILINE)
        if packages and not file.config.is_true("install_py_dep_per_model"):
            message = f"{archive.model} has {name}, and install_py_dep_per_model is off"
            effect = "TorchServe installs nothing; what is missing ends the worker"
            yield Found(file.line("install_py_dep_per_model"), message, effect, "install_py_dep_per_model=true")


@rule(
    "set-snapshot",
    Together,
    "warning",
    "snapshots that win over the file",
    "Started without --ts-config and without --ncs, TorchServe takes the newest file in logs/config instead of "
    "config.properties.",
)
def snapshot(file: Together) -> Iterator[Found]:
    """A folder logs/config with snapshots beside the file."""
    folder = file.source.real.parent / "logs" / "config" if file.source.real else None
    found = sorted(folder.glob("*.cfg")) if folder else []
    if found:
        message = f"there are {len(found)} snapshots in logs/config"
        effect = f"TorchServe starts with {found[-1].name} instead of this file, unless --ts-config or --ncs is given"
        yield Found(1, message, effect, "torchserve --start --ncs --ts-config config.properties")
