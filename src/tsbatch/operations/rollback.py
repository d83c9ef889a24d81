"""Restore the settings that a server in use had before it was tuned, also after the tuner was killed.

Before its first change, ``tune --live`` saves them in a private file beside the server's state file, which it deletes
when they are restored. If the tuner was killed, the file is still there: ``tsbatch tune --restore`` restores the
settings, and every command that connects to the server prints a reminder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tsbatch.errors import ServerError, TsbatchError, UsageError
from tsbatch.operations import registration
from tsbatch.operations.memory_headroom import lack_for_more, lack_of_room
from tsbatch.operations.reconfiguration import REVISION, changing, exchange
from tsbatch.serving.in_flight_requests import drain
from tsbatch.serving.instance import Instance, state_file
from tsbatch.serving.management_client import Management, ModelNotFound, ModelVersion
from tsbatch.system.polling import wait_until
from tsbatch.system.processes import ProcessRef, own_process
from tsbatch.system.state_directory import SCHEMA, read_state, write_state

SUFFIX = ".tuning"
"""Not ``.json``, which marks a server's state file."""

TRIES = 3
SECONDS_BETWEEN_TRIES = 2.0
"""Within this time TorchServe restarts a worker that died, so its death fails one try and not the whole rollback."""

SECONDS_TO_FREE_MEMORY = 5.0
SECONDS_BETWEEN_LOOKS = 0.5
FREE_MEMORY = "stop other programs that use memory"

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSettings:
    """A model's settings before it was tuned, as they are in the file.

    Attributes:
        model: its name.
        workers, batch_size, delay: its settings, the delay in ms.
        most: its maxWorkers.
        version: its default version; None in a file of an older tsbatch.
        versions: its other versions.
        tuner, server: their processes at that time.
    """

    model: str
    workers: int
    batch_size: int
    delay: int
    most: int | None = None
    version: str | None = None
    versions: Sequence[str]
    tuner: ProcessRef
    server: ProcessRef

    @classmethod
    def now(cls, management: Management, instance: Instance, model: str) -> SavedSettings:
        """Read the present settings from the server.

        Raises:
            ModelNotFound: there is no such model.
            ServerError: the server cannot be reached.
        """
        described = management.describe(model)
        default = described["modelVersion"]
        return cls(
            model=model,
            workers=described["minWorkers"],
            batch_size=described["batchSize"],
            delay=described["maxBatchDelay"],
            most=described["maxWorkers"],
            version=default,
            versions=[one["modelVersion"] for one in management.versions(model) if one["modelVersion"] != default],
            tuner=own_process(),
            server=instance.process,
        )

    def __str__(self) -> str:
        return f"workers {self.workers}, batchSize {self.batch_size}, maxBatchDelay {self.delay}"


def path_of(name: str) -> Path:
    """Return the path of the file with an instance's settings."""
    return state_file(name).with_suffix(SUFFIX)


def save(instance: Instance, before: SavedSettings) -> None:
    """Write the file."""
    write_state(path_of(instance.name), {"schema": SCHEMA, **asdict(before)})


def delete(instance: Instance) -> None:
    """Delete the file, if there is one."""
    path_of(instance.name).unlink(missing_ok=True)


def saved(instance: Instance) -> SavedSettings | None:
    """Read the file; None if there is none, or it belongs to an earlier server of this name.

    Raises:
        ServerError: the file cannot be read.
    """
    before = read_state(path_of(instance.name), SavedSettings)
    return before if before is not None and before.server == instance.process else None


def reminder(instance: Instance) -> str | None:
    """Return a reminder to restore the settings if the tuner was killed; otherwise None."""
    with contextlib.suppress(ServerError):
        before = saved(instance)
        if before is not None and not before.tuner.running():
            name = "" if instance.name == "default" else f" --name {instance.name}"
            return (
                f"note: a tuning of {before.model} was killed; to restore {before}, run: tsbatch tune --restore{name}"
            )
    return None


def restore(management: Management, instance: Instance, tell: Tell = lambda _: None) -> SavedSettings:
    """Restore the settings that a killed tuner has changed.

    Raises:
        UsageError: there is nothing to restore, or the tuner is still running.
        ServerError: the settings cannot be restored.
    """
    before = saved(instance)
    if before is None:
        raise UsageError(f"no tuning on the server {instance.name!r} was interrupted; there is nothing to restore")
    if before.tuner.running() and before.tuner != own_process():
        raise UsageError(f"the tuning of {before.model} is still running (process {before.tuner.pid}); stop it first")
    with changing(instance, before.model):
        obstacle = restore_settings(management, instance, before, tell)
    if obstacle:
        raise UsageError(obstacle)
    return before


def restore_settings(
    management: Management, instance: Instance, before: SavedSettings, tell: Tell = lambda _: None
) -> str | None:
    """Restore these settings where they differ, and delete the file.

    If the server fails while it is running, this tries again, :data:`TRIES` times in all.

    Returns:
        Why the settings must not be restored any more, in one line; None if they are restored.

    Raises:
        UsageError: there is not enough memory; the file is kept.
        ServerError: the server failed; the file is kept.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            obstacle = _restore_once(management, instance, before, tell)
        except ServerError as error:  # noqa: PERF203 - a handful of tries
            if not tries_left or not instance.running():
                raise
            tell(f"trying again to restore the settings: {error}")
            time.sleep(SECONDS_BETWEEN_TRIES)
        else:
            break
    delete(instance)
    return obstacle


def _restore_once(management: Management, instance: Instance, before: SavedSettings, tell: Tell) -> str | None:
    obstacle = taken_over(management, before)
    if obstacle is None:
        _remove_leftover_versions(management, instance, before, tell)
        settings = before.workers, before.batch_size, before.delay
        apply_settings(management, instance, before.model, *settings, tell, check_memory=False)
        if before.most not in (None, management.describe(before.model)["maxWorkers"]):
            management.scale(before.model, before.workers, max_workers=before.most, synchronous=False)
    return obstacle


def taken_over(management: Management, before: SavedSettings) -> str | None:
    """Say in one line that the model was deployed anew or unregistered since; None if it was not."""
    try:
        default = management.describe(before.model)["modelVersion"]
    except ModelNotFound:
        return f"the server no longer has a model {before.model}; there is nothing to restore"
    if before.version is None or base_of(default) == base_of(before.version):
        return None
    return f"version {default} of {before.model} is in use now, not one of the tuning; its settings stay unchanged"


def apply_settings(
    management: Management,
    instance: Instance,
    model: str,
    workers: int,
    batch_size: int,
    delay: int,
    tell: Tell = lambda _: None,
    *,
    check_memory: bool = True,
) -> None:
    """Change the settings of a model in use without rejecting a request.

    Args:
        management: the server.
        instance: the server's instance.
        model: its name.
        workers: number of workers.
        batch_size: batchSize.
        delay: maxBatchDelay, ms.
        tell: called with a line about the current step.
        check_memory: start more workers only if there is memory for them.

    Raises:
        UsageError: there is not enough memory for a second version, or for more workers; surplus workers have been
            ended then, and in the second case the other settings changed.
        ServerError: the server failed.
    """
    now = management.describe(model)
    # Fewer workers first, because for a while there are two versions with as many each.
    if workers < now["minWorkers"]:
        now = registration.scale(management, model, workers, on_progress=tell)
    if (now["batchSize"], now["maxBatchDelay"]) != (batch_size, delay):
        if lack := lack_of_room(now):
            raise UsageError(f"{lack}; {FREE_MEMORY}")
        exchange(management, instance, model, now, {"batchSize": batch_size, "maxBatchDelay": delay}, tell=tell)
    if workers > now["minWorkers"]:
        if check_memory and (lack := _lack_for_more(management, model, workers - now["minWorkers"])):
            raise UsageError(f"{lack}; {FREE_MEMORY}")
        registration.scale(management, model, workers, on_progress=tell)


def _lack_for_more(management: Management, model: str, workers: int) -> str | None:
    """Check the memory for more workers after the workers that were just ended have freed theirs."""

    def lack() -> str | None:
        return lack_for_more(management.describe(model), workers)

    enough = wait_until(lambda: lack() is None, SECONDS_TO_FREE_MEMORY, interval=SECONDS_BETWEEN_LOOKS)
    return None if enough else lack()


def base_of(version: str) -> str:
    """Return the version without the suffix that reconfigure adds: 1.0 for 1.0-r2."""
    match = REVISION.match(version)
    return match["version"] if match else version


def _remove_leftover_versions(management: Management, instance: Instance, before: SavedSettings, tell: Tell) -> None:
    """Unregister the second version that a killed tuner may have left, but none that was deployed meanwhile."""
    default = management.describe(before.model)["modelVersion"]
    base = base_of(before.version or default)
    for version in (one["modelVersion"] for one in management.versions(before.model)):
        from_tuner = version == before.version or (REVISION.match(version) and base_of(version) == base)
        if from_tuner and version not in (default, *before.versions):
            with contextlib.suppress(TsbatchError):
                drain(management, ModelVersion(before.model, version), instance.log_dir, tell)
                management.unregister(before.model, version)
