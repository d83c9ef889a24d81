"""The settings that a server in use had before it was tuned, kept where they outlive the tuner.

``tune --live`` writes them beside the server's state file, for its user alone, before it turns the first knob, and
removes them when they are back. When the tuner was killed, they are still there: ``tsbatch tune --restore`` puts them
back, and every command that reaches the server says so in a line.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tsbatch.errors import TsbatchError, UsageError
from tsbatch.ops import registration
from tsbatch.ops.failure import ServerError
from tsbatch.ops.in_flight import drain
from tsbatch.ops.instance import Instance, own_process, state_file, state_folder
from tsbatch.ops.management import Management, ModelVersion
from tsbatch.ops.processes import ProcessRef
from tsbatch.ops.reconfigure import reconfigure
from tsbatch.ops.tokens import write_private

SCHEMA = 1
SUFFIX = ".tuning"
"""Not ``.json``: it is no server's state file."""

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a model's settings were.

    Attributes:
        model: its name.
        workers, batch_size, delay: its settings, the delay in ms.
        versions: versions beside the default one.
        tuner, server: the processes then.
    """

    model: str
    workers: int
    batch_size: int
    delay: int
    versions: Sequence[str]
    tuner: ProcessRef
    server: ProcessRef

    @classmethod
    def now(cls, management: Management, instance: Instance, model: str) -> Before:
        """As they are now.

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
            versions=[one["modelVersion"] for one in management.versions(model) if one["modelVersion"] != default],
            tuner=own_process(),
            server=instance.process,
        )

    def __str__(self) -> str:
        return f"workers {self.workers}, batchSize {self.batch_size}, maxBatchDelay {self.delay}"


def path_of(name: str) -> Path:
    """Where an instance's settings are kept."""
    return state_file(name).with_suffix(SUFFIX) if "." not in name else state_folder() / f"{name}{SUFFIX}"


def remember(instance: Instance, before: Before) -> None:
    """Keep them until :func:`forget`."""
    write_private(path_of(instance.name), json.dumps({"schema": SCHEMA, **asdict(before)}, indent=2) + "\n")


def forget(instance: Instance) -> None:
    """They are back, or there is no server any more that could have them."""
    path_of(instance.name).unlink(missing_ok=True)


def kept(instance: Instance) -> Before | None:
    """What is kept of this very server; None when nothing is.

    Raises:
        ServerError: the file cannot be read.
    """
    path = path_of(instance.name)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.pop("schema") != SCHEMA:
            raise ValueError("another version of tsbatch wrote it")
        values |= {key: ProcessRef(**values[key]) for key in ("tuner", "server")}
        before = Before(**values)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ServerError(f"cannot read {path}: {error}; remove it") from None
    return before if before.server == instance.process else None


def offer(instance: Instance) -> str | None:
    """One line for whoever uses a server whose tuner was killed; None when there is nothing to say."""
    with contextlib.suppress(ServerError):
        before = kept(instance)
        if before is not None and not before.tuner.running():
            name = "" if instance.name == "default" else f" --name {instance.name}"
            return (
                f"note: a tuning of {before.model} was killed; to put back {before} run: tsbatch tune --restore{name}"
            )
    return None


def restore(management: Management, instance: Instance, tell: Tell = lambda _: None) -> Before:
    """Put back what a killed tuner left.

    Raises:
        UsageError: there is nothing to put back, or the tuner still runs.
        ServerError: it cannot be put back.
    """
    before = kept(instance)
    if before is None:
        raise UsageError(f"no tuning of a model on the server {instance.name!r} was interrupted; nothing to put back")
    if before.tuner.running() and before.tuner != own_process():
        raise UsageError(f"the tuning of {before.model} still runs (process {before.tuner.pid}); end it first")
    put_back(management, instance, before, tell)
    return before


def put_back(management: Management, instance: Instance, before: Before, tell: Tell = lambda _: None) -> None:
    """Put these settings back and forget them; nothing is done where they hold already.

    Raises:
        ServerError: it cannot be done; they are still kept.
    """
    _drop_strays(management, instance, before, tell)
    turn(management, instance, before.model, before.workers, before.batch_size, before.delay, tell)
    forget(instance)


def turn(
    management: Management,
    instance: Instance,
    model: str,
    workers: int,
    batch_size: int,
    delay: int,
    tell: Tell = lambda _: None,
) -> None:
    """Give a model in use other settings, without refusing a request.

    Raises:
        UsageError: there is no memory for a second version beside the first.
        ServerError: it cannot be done; the settings are as they were.
    """
    now = management.describe(model)
    if (now["batchSize"], now["maxBatchDelay"]) != (batch_size, delay):
        changes = {"batch_size": batch_size, "max_batch_delay": max(1, delay)}
        reconfigure(management, instance, model, changes, tell=tell)
    if now["minWorkers"] != workers:
        registration.scale(management, model, workers, on_progress=tell)


def _drop_strays(management: Management, instance: Instance, before: Before, tell: Tell) -> None:
    """A tuner that was killed between two versions leaves both."""
    default = management.describe(before.model)["modelVersion"]
    for version in (one["modelVersion"] for one in management.versions(before.model)):
        if version != default and version not in before.versions:
            stray = ModelVersion(before.model, version)
            with contextlib.suppress(TsbatchError):
                drain(management, stray, instance.log_dir, tell)
                management.unregister(stray.name, stray.version)
