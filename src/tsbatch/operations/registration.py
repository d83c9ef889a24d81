"""Registering and scaling as a person means it: until the workers are READY, or with the reason why not."""

from __future__ import annotations

import contextlib
import time
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

EFFECTIVE = {
    "initial_workers": "minWorkers",
    "batch_size": "batchSize",
    "max_batch_delay": "maxBatchDelay",
    "response_timeout": "responseTimeout",
    "startup_timeout": "startupTimeout",
}
"""What is asked for when registering, and the name under which the server tells what holds."""


SECONDS_TO_APPEAR = 5.0
"""After Ctrl-C in the middle of a call; unpacking an archive takes a while."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that the server did not take as it was asked for."""

    setting: str
    asked: int
    effective: int

    def __str__(self) -> str:
        return (
            f"{self.setting} is {self.effective}, not {self.asked} as asked: "
            "the archive's model-config.yaml decides it (package it again to change it)"
        )


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered model.

    Attributes:
        model: as the server describes it.
        differences: what of it differs from what was asked.
        replaced: the version that was the default one until now, where this one took its place.
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
    asked: Mapping[str, int] | None = None,
    default: bool = False,
    on_progress: Progress | None = None,
) -> Registered:
    """Register an archive and wait until its workers are READY.

    Args:
        management: the server.
        archive: a file, a name in the model store, or a URL.
        instance: the server's instance, when it is ours; local files can be registered then.
        model_name: the name to serve it under; the archive's own when left out.
        asked: settings by the keys of :data:`EFFECTIVE`; one worker when it has no ``initial_workers``.
        default: make it the version that requests get which name none, once its workers are READY.
        on_progress: told what is waited for.

    Raises:
        UsageError: when there is no such archive, or the server refuses it.
        LoadFailed: when its workers cannot load it; it is not registered then.
    """
    asked = asked or {}
    url = url_of(archive, instance, management)
    _refuse_name(model_name or _name_in(archive, instance), instance)
    log = management.follow()
    before = versions_of(management)
    if on_progress:
        on_progress(f"registering {archive}")
    try:
        management.register(url, model_name=model_name, synchronous=False, **{"initial_workers": 1, **asked})
        new = versions_of(management) - before
    except TsbatchError:
        raise
    except BaseException:
        if name := model_name or _name_in(archive, instance):
            _drop_late(management, name, before, on_progress or (lambda _: None))
        raise
    who = min((one for one in new if model_name in (None, one.name)), default=None)
    if who is None:
        raise ServerError(f"the server took {archive} and does not list it; another client may have unregistered it")
    try:
        model = management.wait_ready(who.name, who.version, on_progress=on_progress, log=log)
        replaced = _make_default(management, who) if default else None
    except BaseException as error:
        # TorchServe would start its workers again and again for 300 seconds.
        with contextlib.suppress(TsbatchError):
            management.unregister(who.name, who.version)
        if isinstance(error, LoadFailed):
            raise with_archive(error, _local(archive, instance), "it is not registered") from None
        raise
    return Registered(model, differences(asked, model), replaced)


def _make_default(management: Management, who: ModelVersion) -> str | None:
    """The version that was the default one before, if it was another; it is again when something fails."""
    old: str = management.describe(who.name)["modelVersion"]
    if old == who.version:
        return None
    try:
        management.set_default(who.name, who.version)
    except BaseException:
        with contextlib.suppress(TsbatchError):
            management.set_default(who.name, old)
        raise
    return old


def _drop_late(management: Management, name: str, before: Collection[ModelVersion], tell: Progress) -> None:
    """TorchServe finishes what it was asked although nobody waits for the answer any more: what comes of it goes."""
    deadline = time.monotonic() + SECONDS_TO_APPEAR
    while time.monotonic() < deadline:
        tell(f"interrupted; waiting whether the server still registers {name}")
        with contextlib.suppress(TsbatchError):  # another model that goes meanwhile, for example
            for who in versions_of(management) - {*before}:
                if who.name == name:
                    management.unregister(who.name, who.version)
                    return
        time.sleep(SECONDS_BETWEEN_LOOKS)
    say(f"note: interrupted; the server may still register this version of {name}: tsbatch models shows whether it did")


def scale(
    management: Management, name: str, workers: int, version: str | None = None, *, on_progress: Progress | None = None
) -> dict[str, Any]:
    """Set a model's number of workers, wait until it has them, and describe it.

    Raises:
        UsageError: when there is no such model.
        LoadFailed: when a new worker cannot load; the model has as many as before then.
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
            raise with_archive(error, None, f"its number of workers is {before}, as before") from None
        raise


def _name_in(archive: str, instance: Instance | None) -> str:
    local = _local(archive, instance)
    return "" if local is None else ModelSource.parse(local).name


def _refuse_name(name: str, instance: Instance | None) -> None:
    # It could be registered, and then be neither described nor unregistered, nor any other model be listed.
    if instance is not None and instance.token_lifetime and name.startswith("token"):
        raise UsageError(
            f"a server with tokens cannot manage a model named {name!r}: TorchServe takes every address with "
            "'/token' in it for its token API (TokenAuthorizationHandler.java); choose another --model-name"
        )


def _local(archive: str, instance: Instance | None) -> Path | None:
    """Where an archive lies on this machine, if it does."""
    places = [Path(archive), *([instance.model_store / archive] if instance else [])]
    return next((place for place in places if not URL.match(archive) and place.exists()), None)


def differences(asked: Mapping[str, int], model: Mapping[str, Any]) -> list[Difference]:
    """What of the asked settings does not hold in a described model."""
    effective = {setting: model[key] for setting, key in EFFECTIVE.items() if key in model}
    return [
        Difference(setting, value, effective[setting])
        for setting, value in asked.items()
        if setting in effective and effective[setting] != value
    ]


def versions_of(management: Management) -> set[ModelVersion]:
    """Every version of every model that is registered now."""
    return {ModelVersion(model["modelName"], model["modelVersion"]) for model in management.every_version()}


def url_of(archive: str, instance: Instance | None, management: Management) -> str:
    """What to tell the server so that it finds an archive: a name in its model store, or a URL.

    Raises:
        UsageError: when there is no such archive.
    """
    if URL.match(archive):
        return archive
    path = Path(archive)
    if instance is None:
        return elsewhere(path) if path.exists() and management.is_local else archive
    if not path.exists():
        if path.name == archive and (instance.model_store / archive).exists():
            return archive
        raise UsageError(f"no such archive: {archive} (looked here and in the model store {instance.model_store})")
    source = ModelSource.parse(path)
    if source.path.parent.resolve() == instance.model_store.resolve():
        return path.name
    if instance.private_store:
        return source.link_into(instance.model_store)
    if (instance.model_store / path.name).exists():
        raise UsageError(f"the model store {instance.model_store} holds another {path.name}; rename one of the two")
    return elsewhere(source.path)


def elsewhere(path: Path) -> str:
    """How a server is told of an archive outside its model store.

    A file it copies into the store, and removes the copy when the model is unregistered; a folder it uses in its place.
    """
    return str(path.resolve()) if path.is_dir() else path.absolute().as_uri()
