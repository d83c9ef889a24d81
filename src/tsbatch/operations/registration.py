"""Register and scale models, and wait until their workers are READY or fail with the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsbatch.archive.model_store import URL, ModelSource
from tsbatch.errors import LoadFailed, ServerError, TsbatchError, UsageError
from tsbatch.serving.instance import Instance
from tsbatch.serving.load_failure import with_archive
from tsbatch.serving.management_client import SECONDS_BETWEEN_LOOKS, Management, ModelVersion, Progress
from tsbatch.system.console import say
from tsbatch.system.polling import wait_until

EFFECTIVE = {
    "initial_workers": "minWorkers",
    "batch_size": "batchSize",
    "max_batch_delay": "maxBatchDelay",
    "response_timeout": "responseTimeout",
    "startup_timeout": "startupTimeout",
}
"""Options of registering a model, and their keys in the server's description."""

SECONDS_TO_APPEAR = 5.0
"""How long after Ctrl-C in the middle of a call the model may still appear, because unpacking takes a while."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting whose value on the server differs from the requested one."""

    setting: str
    asked: int
    effective: int

    def __str__(self) -> str:
        return (
            f"{self.setting} is {self.effective}, not {self.asked} as requested: "
            "the archive's model-config.yaml takes precedence (package it again to change it)"
        )


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered model.

    Attributes:
        model: the server's description.
        differences: settings that differ from the requested ones.
        replaced: the previous default version, if this one replaced it.
    """

    model: Mapping[str, Any]
    differences: list[Difference] = field(default_factory=list)
    replaced: str | None = None


def register(
    management: Management,
    archive: str,
    *,
    instance: Instance | None = None,
    model_name: str | None = None,
    requested: Mapping[str, int] | None = None,
    default: bool = False,
    on_progress: Progress | None = None,
) -> Registered:
    """Register an archive and wait until its workers are READY.

    Args:
        management: the server.
        archive: a file, a name in the model store, or a URL.
        instance: the server's instance, if tsbatch started it; only then can local files be registered.
        model_name: the name to serve it under; the archive's own by default.
        requested: settings by the keys of :data:`EFFECTIVE`; one worker if there is no ``initial_workers``.
        default: make it the default version once its workers are READY.
        on_progress: called with a line about the current step.

    Raises:
        UsageError: there is no such archive, or the server rejects it.
        LoadFailed: its workers cannot load it; it is not registered then.
    """
    requested = requested or {}
    url = url_of(archive, instance, management)
    _refuse_name(model_name or _name_in(archive, instance), instance)
    log = management.follow()
    before = versions_of(management)
    if on_progress:
        on_progress(f"registering {archive}")
    try:
        management.register(url, model_name=model_name, synchronous=False, **{"initial_workers": 1, **requested})
        new = versions_of(management) - before
    except TsbatchError:
        raise
    except BaseException:
        if name := model_name or _name_in(archive, instance):
            _unregister_late(management, name, before, on_progress or (lambda _: None))
        raise
    registered = min((one for one in new if model_name in (None, one.name)), default=None)
    if registered is None:
        raise ServerError(
            f"the server accepted {archive} but does not list it; another client may have unregistered it"
        )
    try:
        model = management.wait_ready(registered.name, registered.version, on_progress=on_progress, log=log)
        replaced = _make_default(management, registered) if default else None
    except BaseException as error:
        # TorchServe would keep restarting its workers for 300 seconds.
        with contextlib.suppress(TsbatchError):
            management.unregister(registered.name, registered.version)
        if isinstance(error, LoadFailed):
            raise with_archive(error, _local(archive, instance), "it is not registered") from None
        raise
    return Registered(model, differences(requested, model), replaced)


def _make_default(management: Management, registered: ModelVersion) -> str | None:
    """Make it the default version and return the previous one, if it was another; a failure restores that."""
    old: str = management.describe(registered.name)["modelVersion"]
    if old == registered.version:
        return None
    try:
        management.set_default(registered.name, registered.version)
    except BaseException:
        with contextlib.suppress(TsbatchError):
            management.set_default(registered.name, old)
        raise
    return old


def _unregister_late(management: Management, name: str, before: Collection[ModelVersion], tell: Progress) -> None:
    """Unregister a version that TorchServe finishes registering after the call was interrupted."""

    def unregistered() -> bool:
        tell(f"interrupted; checking whether the server still registers {name}")
        with contextlib.suppress(TsbatchError):  # another model is unregistered meanwhile, for example
            for new in versions_of(management) - {*before}:
                if new.name == name:
                    management.unregister(new.name, new.version)
                    return True
        return False

    if not wait_until(unregistered, SECONDS_TO_APPEAR, interval=SECONDS_BETWEEN_LOOKS):
        say(f"note: interrupted; the server may still register this version of {name}; run tsbatch models to check")


def scale(
    management: Management, name: str, workers: int, version: str | None = None, *, on_progress: Progress | None = None
) -> dict[str, Any]:
    """Set a model's number of workers, wait until they are READY, and describe it.

    Raises:
        UsageError: there is no such model.
        LoadFailed: a new worker cannot load; the old number is restored then.
    """
    before = management.describe(name, version)["minWorkers"]
    log = management.follow()
    management.scale(name, workers, version, synchronous=False)
    try:
        return management.wait_ready(name, version, on_progress=on_progress, log=log)
    except BaseException as error:
        with contextlib.suppress(TsbatchError):
            management.scale(name, before, version, synchronous=False)
        if isinstance(error, LoadFailed):
            raise with_archive(error, None, f"its number of workers stays at {before}") from None
        raise


def _name_in(archive: str, instance: Instance | None) -> str:
    local = _local(archive, instance)
    return "" if local is None else ModelSource.parse(local).name


def _refuse_name(name: str, instance: Instance | None) -> None:
    # It could be registered, but then neither described nor unregistered, and no model could be listed.
    if instance is not None and instance.token_lifetime and name.startswith("token"):
        raise UsageError(
            f"a server with tokens cannot manage a model named {name!r}: TorchServe treats every address with "
            "'/token' in it as its token API (TokenAuthorizationHandler.java); choose another --model-name"
        )


def _local(archive: str, instance: Instance | None) -> Path | None:
    """Find an archive on this machine, if it is here."""
    paths = [Path(archive), *([instance.model_store / archive] if instance else [])]
    return next((path for path in paths if not URL.match(archive) and path.exists()), None)


def differences(requested: Mapping[str, int], model: Mapping[str, Any]) -> list[Difference]:
    """List the requested settings that differ in a described model."""
    effective = {setting: model[key] for setting, key in EFFECTIVE.items() if key in model}
    return [
        Difference(setting, value, effective[setting])
        for setting, value in requested.items()
        if setting in effective and effective[setting] != value
    ]


def versions_of(management: Management) -> set[ModelVersion]:
    """List every version of every registered model."""
    return {ModelVersion(model["modelName"], model["modelVersion"]) for model in management.every_version()}


def url_of(archive: str, instance: Instance | None, management: Management) -> str:
    """Return the name in the model store or the URL by which the server finds an archive.

    Raises:
        UsageError: there is no such archive.
    """
    if URL.match(archive):
        return archive
    path = Path(archive)
    if instance is None:
        return _address_of(path) if path.exists() and management.is_local else archive
    if not path.exists():
        if path.name == archive and (instance.model_store / archive).exists():
            return archive
        raise UsageError(f"no such archive: {archive} (searched here and in the model store {instance.model_store})")
    source = ModelSource.parse(path)
    if source.path.parent.resolve() == instance.model_store.resolve():
        return path.name
    if instance.private_store:
        return source.link_into(instance.model_store)
    if (instance.model_store / path.name).exists():
        raise UsageError(f"the model store {instance.model_store} already has another {path.name}; rename one of them")
    return _address_of(source.path)


def _address_of(path: Path) -> str:
    """Return the address for an archive outside the model store.

    The server copies a file into its store and removes the copy when the model is unregistered; a folder is used in
    place.
    """
    return str(path.resolve()) if path.is_dir() else path.absolute().as_uri()
