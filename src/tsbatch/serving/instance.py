"""A running server and its state file.

Each named instance has one state file, in a folder that only its user can enter. It holds the server's addresses,
process and work folder, but never its tokens.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tsbatch.errors import ServerError, UsageError
from tsbatch.serving.management_client import Management
from tsbatch.serving.tokens import FixedToken, KeyFile, TokenSource
from tsbatch.system.processes import ProcessRef, end_marked
from tsbatch.system.state_directory import SCHEMA, read_state, state_folder, write_state

DEFAULT_NAME = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

WORK_PREFIX = "tsbatch-"
SECONDS_TO_STOP = 20
"""TorchServe closes its ports, waits two seconds for running calls, and kills its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One named server of this user.

    Attributes:
        name: its name.
        process: the Java process.
        owner: the process that renews its tokens: ``tsbatch serve`` in the foreground, or a token keeper.
        detached: whether the owner is a token keeper, which ends with the server.
        work_dir: the server's private folder; removed when it stops.
        log_dir: where TorchServe writes its logs.
        model_store: TorchServe's model store.
        private_store: whether the store is in the work folder, so that tsbatch may add archives to it.
        token_lifetime: seconds until a token expires; 0 if the server needs no tokens.
        inference_address, management_address, metrics_address: as ``http://127.0.0.1:8080``.
        grpc_inference_address: as ``127.0.0.1:7070``.
    """

    name: str
    process: ProcessRef
    owner: ProcessRef
    detached: bool = False
    work_dir: Path
    log_dir: Path
    model_store: Path
    private_store: bool
    token_lifetime: float
    inference_address: str
    management_address: str
    metrics_address: str
    grpc_inference_address: str

    @property
    def keys(self) -> KeyFile:
        """The server's key file."""
        return KeyFile(self.work_dir, self.management_address, self.token_lifetime)

    @property
    def tokens(self) -> TokenSource:
        """The source of tokens for its addresses."""
        return self.keys if self.token_lifetime else FixedToken(None)

    def management(self) -> Management:
        """Open a client of its management API."""
        return Management(self.management_address, self.tokens, log_dir=self.log_dir)

    def running(self) -> bool:
        """Whether its Java process is running."""
        return self.process.running()

    def save(self) -> None:
        """Write the state file."""
        write_state(state_file(self.name), {"schema": SCHEMA, **asdict(self)})

    def forget(self) -> None:
        """Remove the state file, unless another server has the name now."""
        with contextlib.suppress(ServerError, UsageError):
            saved = load(self.name)
            if saved is None or saved.process == self.process:
                state_file(self.name).unlink(missing_ok=True)

    def detach_to(self, keeper: ProcessRef) -> Instance:
        """Save and return the instance with a token keeper as its owner."""
        detached = replace(self, owner=keeper, detached=True)
        detached.save()
        return detached

    def stop(self) -> None:
        """Stop the server with all its processes and remove its folder and state file."""
        if self.detached:
            self.owner.terminate()
        self.process.terminate()
        self.process.wait_gone(SECONDS_TO_STOP)
        self.clean()
        if self.owner.pid != os.getpid():
            self.owner.wait_gone(5)

    def clean(self) -> None:
        """Kill the server's remaining processes and remove its folder and state file."""
        end_marked(str(self.work_dir))
        if self.work_dir.name.startswith(WORK_PREFIX):
            shutil.rmtree(self.work_dir, ignore_errors=True)
        self.forget()


def state_file(name: str) -> Path:
    """Return the path of an instance's state file.

    Raises:
        UsageError: the name is not valid.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"invalid instance name {name!r}; use up to 64 letters, digits, '-', '_' and '.'")
    return state_folder() / f"{name}.json"


def load(name: str) -> Instance | None:
    """Return the saved instance with this name, running or not; None if there is none.

    Raises:
        ServerError: its state file cannot be read.
    """
    return read_state(state_file(name), Instance)


def find(name: str) -> Instance:
    """Return the running instance with this name; clean up after one that ended unexpectedly.

    Raises:
        UsageError: there is none; the message lists the others.
        ServerError: it ended unexpectedly.
    """
    instance = load(name)
    if instance is None:
        others = ", ".join(names()) or "none"
        raise UsageError(f"no server named {name!r} is running (running: {others}); start one with: tsbatch serve")
    if not instance.running():
        instance.clean()
        raise ServerError(f"the server {name!r} (process {instance.process.pid}) ended unexpectedly; start it again")
    return instance


def names() -> list[str]:
    """List the names of all instances that have a state file."""
    return sorted(path.stem for path in state_folder().glob("*.json") if NAME.fullmatch(path.stem))


def running_here(name: str) -> bool:
    """Whether a server with this name is running; clean up after one that ended unexpectedly.

    Raises:
        ServerError: its state file cannot be read.
    """
    instance = load(name)
    if instance is not None and not instance.running():
        instance.clean()
        return False
    return instance is not None
