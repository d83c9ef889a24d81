"""The settings that a server in use had before it was tuned, kept where they outlive the tuner.

``tune --live`` writes them beside the server's state file, for its user alone, before it turns the first knob, and
removes them when they are back. When the tuner was killed, they are still there: ``tsbatch tune --restore`` puts them
back, and every command that reaches the server says so in a line.
"""

from __future__ import annotations

import contextlib
import json
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
from tsbatch.system.processes import ProcessRef, own_process
from tsbatch.system.state_directory import state_folder, write_private

SCHEMA = 1
SUFFIX = ".tuning"
"""Not ``.json``: it is no server's state file."""

TRIES = 3
SECONDS_BETWEEN_TRIES = 2.0
"""TorchServe starts a worker again within them; one that dies in the middle fails a try, not the putting back."""

SECONDS_TO_END = 5.0
SECONDS_BETWEEN_LOOKS = 0.5

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What a model's settings were.

    Attributes:
        model: its name.
        workers, batch_size, delay: its settings, the delay in ms.
        most: its maxWorkers.
        version: its default version; None in a file of before this was kept.
        versions: versions beside the default one.
        tuner, server: the processes then.
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
            most=described["maxWorkers"],
            version=default,
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
        UsageError: there is nothing to put back (any more), or the tuner still runs.
        ServerError: it cannot be put back.
    """
    before = kept(instance)
    if before is None:
        raise UsageError(f"no tuning of a model on the server {instance.name!r} was interrupted; nothing to put back")
    if before.tuner.running() and before.tuner != own_process():
        raise UsageError(f"the tuning of {before.model} still runs (process {before.tuner.pid}); end it first")
    with changing(instance, before.model):
        others = put_back(management, instance, before, tell)
    if others:
        raise UsageError(others)
    return before


def put_back(management: Management, instance: Instance, before: Before, tell: Tell = lambda _: None) -> str | None:
    """Put these settings back and forget them; nothing is done where they hold already.

    A server that fails is asked again while it runs, :data:`TRIES` times in all.

    Returns:
        In a line, why nothing is to be put back any more; None when they hold.

    Raises:
        UsageError: there is no memory for it; they are still kept.
        ServerError: it cannot be done; they are still kept.
    """
    for tries_left in reversed(range(TRIES)):
        try:
            others = _put_back_once(management, instance, before, tell)
        except ServerError as error:  # noqa: PERF203 - a handful of tries
            if not tries_left or not instance.running():
                raise
            tell(f"trying again to put back the settings: {error}")
            time.sleep(SECONDS_BETWEEN_TRIES)
        else:
            break
    forget(instance)
    return others


def _put_back_once(management: Management, instance: Instance, before: Before, tell: Tell) -> str | None:
    others = taken_over(management, before)
    if others is None:
        _drop_strays(management, instance, before, tell)
        settings = before.workers, before.batch_size, before.delay
        turn(management, instance, before.model, *settings, tell, careful=False)
        if before.most not in (None, management.describe(before.model)["maxWorkers"]):
            management.scale(before.model, before.workers, max_workers=before.most, synchronous=False)
    return others


def taken_over(management: Management, before: Before) -> str | None:
    """In a line, that somebody else has deployed the model since, or dropped it; None when nobody has."""
    try:
        default = management.describe(before.model)["modelVersion"]
    except ModelNotFound:
        return f"the server has no model {before.model} any more; nothing to put back"
    if before.version is None or base_of(default) == base_of(before.version):
        return None
    others = f"version {default} of {before.model} is in use now, which the tuning did not make"
    return f"{others}; its settings stay as they are"


def turn(
    management: Management,
    instance: Instance,
    model: str,
    workers: int,
    batch_size: int,
    delay: int,
    tell: Tell = lambda _: None,
    *,
    careful: bool = True,
) -> None:
    """Give a model in use other settings, without refusing a request.

    Args:
        management: the server.
        instance: the server's instance.
        model: its name.
        workers: how many.
        batch_size: batchSize.
        delay: maxBatchDelay, ms.
        tell: told what is being done.
        careful: start no more workers than there seems to be memory for; those that were there before had some.

    Raises:
        UsageError: there is no memory for a second version beside the first, or for more workers; surplus workers are
            ended, and the other settings changed, by then.
        ServerError: it cannot be done.
    """
    now = management.describe(model)
    # While there are two versions each has as many: as few as can be.
    if workers < now["minWorkers"]:
        now = registration.scale(management, model, workers, on_progress=tell)
    if (now["batchSize"], now["maxBatchDelay"]) != (batch_size, delay):
        if lack := lack_of_room(now):
            raise UsageError(f"{lack}; end something else that takes memory")
        exchange(management, instance, model, now, {"batchSize": batch_size, "maxBatchDelay": delay}, tell=tell)
    if workers > now["minWorkers"]:
        if careful and (lack := _lack_for_more(management, model, workers - now["minWorkers"])):
            raise UsageError(f"{lack}; end something else that takes memory")
        registration.scale(management, model, workers, on_progress=tell)


def _lack_for_more(management: Management, model: str, workers: int) -> str | None:
    """As ``memory_headroom.lack_for_more``, once those that were just ended have given back their memory."""
    deadline = time.monotonic() + SECONDS_TO_END
    while (lack := lack_for_more(management.describe(model), workers)) and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return lack


def base_of(version: str) -> str:
    """The version that somebody named: 1.0 of 1.0-r2."""
    match = REVISION.match(version)
    return match["version"] if match else version


def _drop_strays(management: Management, instance: Instance, before: Before, tell: Tell) -> None:
    """A tuner that was killed between two versions leaves both; what others deployed meanwhile stays."""
    default = management.describe(before.model)["modelVersion"]
    base = base_of(before.version or default)
    for version in (one["modelVersion"] for one in management.versions(before.model)):
        ours = version == before.version or (REVISION.match(version) and base_of(version) == base)
        if ours and version not in (default, *before.versions):
            stray = ModelVersion(before.model, version)
            with contextlib.suppress(TsbatchError):
                drain(management, stray, instance.log_dir, tell)
                management.unregister(stray.name, stray.version)
