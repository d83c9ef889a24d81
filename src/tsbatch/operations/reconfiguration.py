"""Change the settings of a running model without rejecting a request.

TorchServe reads batch size, delay and timeouts only when a version is registered. So the same files are registered
again as a new version, with a new manifest and model-config.yaml::

    new folder of links ─ register ─ READY ─ new default ─ drain old ─ unregister old ─ read settings back
                          └──── a failure restores the old state ─────┘
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tsbatch.archive import model_folder
from tsbatch.archive.manifest import MANIFEST_NAME
from tsbatch.archive.model_config import CONFIG_NAME, JAVA_INT_MAX, dump, read
from tsbatch.archive.writer import HASHES_NAME
from tsbatch.emulation.worker_environment import unpack
from tsbatch.errors import ServerError, TsbatchError, UsageError
from tsbatch.operations import registration
from tsbatch.operations.memory_headroom import lack_of_room
from tsbatch.operations.setting_sources import file_name
from tsbatch.serving.in_flight_requests import drain, pinned
from tsbatch.serving.instance import DEFAULT_NAME, Instance
from tsbatch.serving.management_client import Management, ModelNotFound, ModelVersion
from tsbatch.system.atomic_write import try_lock

SETTINGS = {
    "batch_size": "batchSize",
    "max_batch_delay": "maxBatchDelay",
    "response_timeout": "responseTimeout",
    "startup_timeout": "startupTimeout",
}
"""Settings that can be changed: option, and key in model-config.yaml and in the server's description of a model."""

KEPT = ("minWorkers", "maxWorkers", *SETTINGS.values())
FOLDER = "reconfigured"
"""Folder in the server's work folder with the files of the new versions; removed when the server stops."""

REVISION = re.compile(r"^(?P<version>.+)-r(?P<number>\d+)$")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """A model with changed settings.

    Attributes:
        model: the server's description of the new version.
        before: its description of the old version.
        notes: caveats for the operator.
    """

    model: Mapping[str, Any]
    before: Mapping[str, Any]
    notes: Sequence[str] = field(default_factory=list)


def reconfigure(
    management: Management,
    instance: Instance | None,
    name: str,
    changes: Mapping[str, int],
    *,
    force: bool = False,
    tell: Tell = lambda _: None,
) -> Reconfigured:
    """Change settings of a model's default version while it serves requests.

    Args:
        management: the server.
        instance: the server's instance; only servers that tsbatch started can be reconfigured.
        name: the model.
        changes: new values by the keys of :data:`SETTINGS`; timeouts in s, the delay in ms.
        force: continue if the memory for both versions seems insufficient.
        tell: called with a line about the current step.

    Raises:
        UsageError: nothing to change, a value out of range, no such model, a server that tsbatch did not start, or too
            little memory.
        ServerError: another command is changing the model, or a step failed; the old state is restored unless the
            message says otherwise.
    """
    if instance is None:
        raise UsageError(
            "reconfigure needs a server that tsbatch started on this machine; on other servers"
            " package the model again with another --version, register it, make it the default with"
            f" PUT /models/{name}/VERSION/set-default, and unregister the old version when it is idle"
        )
    for setting, value in changes.items():
        if not 1 <= value <= JAVA_INT_MAX:
            raise UsageError(f"--{setting.replace('_', '-')}: must be from 1 to {JAVA_INT_MAX}, got {value}")
    management.describe(name)  # fails for an unknown model, before any file is made
    with changing(instance, name):
        before = management.describe(name)
        wanted = {key: changes.get(setting, before[key]) for setting, key in SETTINGS.items()}
        if all(before[key] == value for key, value in wanted.items()):
            raise UsageError(f"{name} already has these settings; nothing to change")
        if not force and (lack := lack_of_room(before)):
            raise UsageError(f"{lack}; scale {name} down, use another machine, or continue with --force")
        return exchange(management, instance, name, before, wanted, tell=tell)


def exchange(
    management: Management,
    instance: Instance,
    name: str,
    before: Mapping[str, Any],
    settings: Mapping[str, int],
    *,
    tell: Tell = lambda _: None,
) -> Reconfigured:
    """Do the same without any checks, inside :func:`changing`.

    This can also restore a delay of 0 or less, which only the call that registers a version can set
    (frontend/server/.../wlm/ModelManager.java).

    Args:
        management: the server.
        instance: the server's instance.
        name: the model.
        before: the server's description of its default version.
        settings: new values by the values of :data:`SETTINGS`; the others are unchanged.
        tell: called with a line about the current step.

    Raises:
        ServerError: a step failed; the old state is restored unless the message says otherwise.
    """
    wanted = {key: settings.get(key, before[key]) for key in SETTINGS.values()}
    return _Change(management, instance, name, before, wanted, tell).run()


@contextlib.contextmanager
def changing(instance: Instance, name: str) -> Iterator[None]:
    """Lock a model against other commands that change its settings; the system releases a killed process's lock.

    Raises:
        ServerError: another command has the lock.
    """
    descriptor = os.open(instance.work_dir / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not try_lock(descriptor):
            raise ServerError(
                f"another reconfigure or tune --live is changing {name} on this server; try again when it is done"
            )
        yield
    finally:
        os.close(descriptor)


class _Change:
    """One change of one model, step by step; a failure undoes the steps before it."""

    def __init__(
        self,
        management: Management,
        instance: Instance,
        name: str,
        before: Mapping[str, Any],
        wanted: Mapping[str, int],
        tell: Tell,
    ) -> None:
        self.management, self.instance, self.tell = management, instance, tell
        self.before, self.wanted = before, wanted
        self.old = ModelVersion(name, before["modelVersion"])
        folders = instance.work_dir / FOLDER
        taken = {model["modelVersion"] for model in management.versions(name)}
        # A change that was killed may have left a folder without a version.
        taken |= {folder.name.removeprefix(f"{name}-") for folder in folders.glob(f"{glob.escape(name)}-*")}
        self.new = ModelVersion(name, next_version(self.old.version, taken))
        self.folder = folders / f"{name}-{self.new.version}"

    def run(self) -> Reconfigured:
        notes = self._warnings()
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._make_folder()
            # Each callback before its step: if the response is lost, the server may have done it all the same.
            undo.callback(self._unregister_new)
            self._register()
            undo.callback(self._back_to_old)
            self.management.set_default(self.new.name, self.new.version)
            drain(self.management, self.old, self.instance.log_dir, self.tell)
            # From here on there may be only the new version, so nothing is undone.
            undo.pop_all()
        self._unregister_old()
        shutil.rmtree(self.folder.with_name(f"{self.old.name}-{self.old.version}"), ignore_errors=True)
        model = self.management.describe(self.new.name)
        if different := {key: model[key] for key, value in self.wanted.items() if model[key] != value}:
            raise ServerError(f"{self.new} runs with {different}, which differs from the requested settings")
        return Reconfigured(model, self.before, notes)

    def _warnings(self) -> list[str]:
        notes = [
            f"requests for version {self.old.version} get 404 from now on; the new version is {self.new.version}",
            "the change lasts until the server stops; to keep these settings, package the model again with them",
        ]
        if count := pinned(self.instance.log_dir, self.old):
            notes[0] = f"{count} requests in access_log.log are for version {self.old.version}: {notes[0]}"
        return notes

    def _make_folder(self) -> None:
        """Link the running version's files into a folder with a new manifest and model-config.yaml."""
        self.tell(f"preparing {self.new}")
        self.folder.mkdir(parents=True)
        # Settings that were made by other means apply to the new version too.
        effective = {**{key: self.before[key] for key in KEPT if key in self.before}, **self.wanted}
        # In a file, 0 would become 100 ms; the registration call sets the delay again.
        effective["maxBatchDelay"] = max(1, effective["maxBatchDelay"])
        with files_of(self.instance, self.before, self.folder.with_name(f".{self.folder.name}")) as source:
            write_variant(source, self.folder, version=self.new.version, settings=effective)

    def _register(self) -> None:
        requested = {setting: self.wanted[SETTINGS[setting]] for setting in ("batch_size", "max_batch_delay")}
        registration.register(
            self.management,
            str(self.folder.resolve()),
            model_name=self.new.name,
            requested={**requested, "initial_workers": self.before["minWorkers"]},
            on_progress=self.tell,
        )

    def _back_to_old(self) -> None:
        with contextlib.suppress(TsbatchError):
            self.management.set_default(self.old.name, self.old.version)
            drain(self.management, self.new, self.instance.log_dir, self.tell)

    def _unregister_new(self) -> None:
        with contextlib.suppress(TsbatchError):
            self.management.unregister(self.new.name, self.new.version)

    def _unregister_old(self) -> None:
        self.tell(f"unregistering {self.old}")
        try:
            self.management.unregister(self.old.name, self.old.version)
        except ModelNotFound:
            pass  # another client was faster
        except TsbatchError as error:
            name = "" if self.instance.name == DEFAULT_NAME else f" --name {self.instance.name}"
            raise ServerError(
                f"{self.new} has the new settings and is in use, but {self.old} could not be unregistered ({error})"
                f" and may still use memory; run: tsbatch unregister {self.old.name} --version {self.old.version}{name}"
            ) from error


def next_version(version: str, taken: set[str]) -> str:
    """Return the next free revision of a version, such as 1.0-r1 for 1.0."""
    match = REVISION.match(version)
    base, number = (match["version"], int(match["number"])) if match else (version, 0)
    while True:
        number += 1
        if (new := f"{base}-r{number}") not in taken:
            return new


@contextlib.contextmanager
def files_of(instance: Instance, model: Mapping[str, Any], scratch: Path) -> Iterator[Path]:
    """Find a described model's files: its workers' current folder, or its archive, unpacked if necessary.

    Args:
        instance: the server.
        model: the server's description.
        scratch: folder to unpack into; made and removed here.

    Raises:
        ServerError: they were not found.
    """
    for worker in model["workers"]:
        with contextlib.suppress(psutil.Error, OSError):
            folder = Path(psutil.Process(worker["pid"]).cwd())
            if (folder / MANIFEST_NAME).is_file():
                yield folder
                return
    archive = instance.model_store / file_name(model["modelUrl"])
    if archive.is_dir():
        yield archive
    elif archive.is_file():
        try:
            unpack(archive, scratch)
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    else:
        raise ServerError(f"version {model['modelVersion']} has no running worker and no archive at {archive}")


def write_variant(
    source: Path, folder: Path, *, settings: Mapping[str, Any], version: str | None = None, threads: int | None = None
) -> None:
    """Make a folder with a model's files as links, but with a changed manifest and model-config.yaml.

    Args:
        source: the model's files, unpacked.
        folder: the new folder; empty.
        settings: keys of model-config.yaml to change.
        version: the new version; unchanged by default.
        threads: threads of one worker, for a tsbatch handler; unchanged by default.
    """
    manifest = json.loads((source / MANIFEST_NAME).read_bytes())
    config = manifest["model"].setdefault("configFile", CONFIG_NAME)
    own = read(source / config) if (source / config).is_file() else {}
    link_files(source, folder, exclude={MANIFEST_NAME, HASHES_NAME, config})
    manifest["model"]["modelVersion"] = version or manifest["model"].get("modelVersion", "1.0")
    if threads is not None:
        own["tsbatch"] = {**(own.get("tsbatch") or {}), "threads": threads}
    (folder / MANIFEST_NAME).parent.mkdir(exist_ok=True)
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2), encoding="ascii")
    (folder / config).write_bytes(dump({**own, **settings}))


def link_files(source: Path, target: Path, *, exclude: set[str]) -> None:
    """Link ``source``'s files into ``target``; hard links need no space and outlive ``source``.

    On a file system without hard links the files are copied.
    """
    for name, path in model_folder.walk(source).items():
        if name in exclude or "__pycache__" in name.split("/"):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), target / name)
        except OSError:
            shutil.copyfile(path, target / name)
