"""Other settings for a running model, without refusing a request.

TorchServe reads batch size, delay and time-outs once, when a version is registered. So the same files are registered
again as a new version, with another manifest and model-config.yaml::

    new folder of links ─ register ─ READY ─ new default ─ old one drained ─ old one dropped ─ settings read back
                          └── a failure puts everything back as it was ──┘
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
"""What can be changed, and its key in model-config.yaml and in the server's description of a model."""

KEPT = ("minWorkers", "maxWorkers", *SETTINGS.values())
FOLDER = "reconfigured"
"""In the server's work folder: what the new versions run from. It goes when the server is stopped."""

REVISION = re.compile(r"^(?P<version>.+)-r(?P<number>\d+)$")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """A model with other settings.

    Attributes:
        model: the new version, as the server describes it.
        before: the old one, as it was.
        notes: what its operator should know.
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
    """Change settings of a model's default version while it goes on answering.

    Args:
        management: the server.
        instance: the server's instance; this works on servers of ours only.
        name: the model.
        changes: keys of :data:`SETTINGS` and their new values; time-outs in s, the delay in ms.
        force: go on when memory for both versions seems to be missing.
        tell: told what is being done.

    Raises:
        UsageError: nothing to change, a value out of range, no such model, not our server, or too little memory.
        ServerError: somebody else changes it, or something failed on the way; the model is as it was, or the message
            says what is not.
    """
    if instance is None:
        raise UsageError(
            "reconfigure needs the model's files on the server's machine, and a server that tsbatch started; elsewhere"
            " package the model again with another --version, register it, make it the default with"
            f" PUT /models/{name}/VERSION/set-default, and unregister the old version when it is idle"
        )
    _check(changes)
    management.describe(name)  # before a file is made for a model that there is not
    with changing(instance, name):
        before = management.describe(name)
        wanted = {key: changes.get(setting, before[key]) for setting, key in SETTINGS.items()}
        if all(before[key] == value for key, value in wanted.items()):
            raise UsageError(f"{name} has these settings already; nothing to change")
        if not force and (lack := lack_of_room(before)):
            raise UsageError(f"{lack}; scale {name} down or use another machine, or go on with --force")
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
    """The same without a question: whatever a server was found with can be put back, a delay of 0 or less too.

    Only the call that registers a version can set such a delay (frontend/server/.../wlm/ModelManager.java). It is for
    the inside of :func:`changing`.

    Args:
        management: the server.
        instance: the server's instance.
        name: the model.
        before: its default version, as the server describes it.
        settings: keys of model-config.yaml among the values of :data:`SETTINGS`; the others stay as they are.
        tell: told what is being done.

    Raises:
        ServerError: something failed on the way; the model is as it was, or the message says what is not.
    """
    wanted = {key: settings.get(key, before[key]) for key in SETTINGS.values()}
    return _Change(management, instance, name, before, wanted, tell).run()


@contextlib.contextmanager
def changing(instance: Instance, name: str) -> Iterator[None]:
    """Keep others from changing a model's settings, inside the ``with`` block; a killed process keeps nobody.

    Raises:
        ServerError: somebody else does.
    """
    descriptor = os.open(instance.work_dir / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not try_lock(descriptor):
            raise ServerError(
                f"another reconfigure or tune --live changes {name} on this server; do the same again once that is done"
            )
        yield
    finally:
        os.close(descriptor)


def _check(changes: Mapping[str, int]) -> None:
    for setting, value in changes.items():
        if not 1 <= value <= JAVA_INT_MAX:
            raise UsageError(f"--{setting.replace('_', '-')}: must be from 1 to {JAVA_INT_MAX}, got {value}")


class _Change:
    """One change of one model, step by step; the steps that were done are undone when a later one fails."""

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
        # Where an earlier change was killed its folder is left, and no version of it.
        taken |= {folder.name.removeprefix(f"{name}-") for folder in folders.glob(f"{glob.escape(name)}-*")}
        self.new = ModelVersion(name, next_version(self.old.version, taken))
        self.folder = folders / f"{name}-{self.new.version}"

    def run(self) -> Reconfigured:
        notes = self._warnings()
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self._make_folder()
            # Each before its step: the server may have done what nobody heard the answer of.
            undo.callback(self._drop_new)
            self._register()
            undo.callback(self._back_to_old)
            self.management.set_default(self.new.name, self.new.version)
            drain(self.management, self.old, self.instance.log_dir, self.tell)
            # From here on the old version may be gone, and the new one is all there is.
            undo.pop_all()
        self._drop_old()
        shutil.rmtree(self.folder.with_name(f"{self.old.name}-{self.old.version}"), ignore_errors=True)
        model = self.management.describe(self.new.name)
        if different := {key: model[key] for key, value in self.wanted.items() if model[key] != value}:
            raise ServerError(f"{self.new} runs with {different}, which is not what was asked")
        return Reconfigured(model, self.before, notes)

    def _warnings(self) -> list[str]:
        notes = [
            f"clients that name version {self.old.version} get 404 from now on; the version is {self.new.version}",
            "it holds until the server is stopped; package the model again with these settings to keep them",
        ]
        if count := pinned(self.instance.log_dir, self.old):
            notes[0] = f"{count} requests in access_log.log named version {self.old.version}: {notes[0]}"
        return notes

    def _make_folder(self) -> None:
        """The running version's files as links, with a manifest and a model-config.yaml of their own."""
        self.tell(f"preparing {self.new}")
        self.folder.mkdir(parents=True)
        # What the server was told by other ways holds for the new version too.
        effective = {**{key: self.before[key] for key in KEPT if key in self.before}, **self.wanted}
        # In a file 0 would become 100 ms; the call that registers it says it again.
        effective["maxBatchDelay"] = max(1, effective["maxBatchDelay"])
        with files_of(self.instance, self.before, self.folder.with_name(f".{self.folder.name}")) as source:
            write_variant(source, self.folder, version=self.new.version, settings=effective)

    def _register(self) -> None:
        asked = {setting: self.wanted[SETTINGS[setting]] for setting in ("batch_size", "max_batch_delay")}
        registration.register(
            self.management,
            str(self.folder.resolve()),
            model_name=self.new.name,
            asked={**asked, "initial_workers": self.before["minWorkers"]},
            on_progress=self.tell,
        )

    def _back_to_old(self) -> None:
        with contextlib.suppress(TsbatchError):
            self.management.set_default(self.old.name, self.old.version)
            drain(self.management, self.new, self.instance.log_dir, self.tell)

    def _drop_new(self) -> None:
        with contextlib.suppress(TsbatchError):
            self.management.unregister(self.new.name, self.new.version)

    def _drop_old(self) -> None:
        self.tell(f"dropping {self.old}")
        try:
            self.management.unregister(self.old.name, self.old.version)
        except ModelNotFound:
            pass  # somebody else did
        except TsbatchError as error:
            name = "" if self.instance.name == DEFAULT_NAME else f" --name {self.instance.name}"
            raise ServerError(
                f"{self.new} has the new settings and is in use, but {self.old} could not be dropped ({error}) and may"
                f" still take memory: tsbatch unregister {self.old.name} --version {self.old.version}{name}"
            ) from error


def next_version(version: str, taken: set[str]) -> str:
    """A free version with the same beginning: 1.0, 1.0-r1, 1.0-r2."""
    match = REVISION.match(version)
    base, number = (match["version"], int(match["number"])) if match else (version, 0)
    while True:
        number += 1
        if (new := f"{base}-r{number}") not in taken:
            return new


@contextlib.contextmanager
def files_of(instance: Instance, model: Mapping[str, Any], scratch: Path) -> Iterator[Path]:
    """Where a described model's files lie: where its workers work, or unpacked when it has none.

    Args:
        instance: the server.
        model: as the server describes it.
        scratch: a folder to unpack into, which is not there yet and is gone afterwards.

    Raises:
        ServerError: they are nowhere to be found.
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
    """A model's files again, with other settings: links, and a manifest and a model-config.yaml of their own.

    Args:
        source: its files, unpacked.
        folder: where to; empty.
        settings: keys of model-config.yaml and their values; all others stay.
        version: the model's version; as it is when left out.
        threads: of one worker, for a handler of tsbatch; as it is when left out.
    """
    manifest = json.loads((source / MANIFEST_NAME).read_bytes())
    config = manifest["model"].setdefault("configFile", CONFIG_NAME)
    own = read(source / config) if (source / config).is_file() else {}
    link_files(source, folder, leave_out={MANIFEST_NAME, HASHES_NAME, config})
    manifest["model"]["modelVersion"] = version or manifest["model"].get("modelVersion", "1.0")
    if threads is not None:
        own["tsbatch"] = {**(own.get("tsbatch") or {}), "threads": threads}
    (folder / MANIFEST_NAME).parent.mkdir(exist_ok=True)
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2), encoding="ascii")
    (folder / config).write_bytes(dump({**own, **settings}))


def link_files(source: Path, target: Path, *, leave_out: set[str]) -> None:
    """``source``'s files below ``target`` as hard links, so that they stay when ``source`` goes and cost nothing.

    Where the file system has none they are copied.
    """
    for name, path in model_folder.walk(source).items():
        if name in leave_out or "__pycache__" in name.split("/"):
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), target / name)
        except OSError:
            shutil.copyfile(path, target / name)
