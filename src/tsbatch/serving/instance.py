"""A running server, as its state file describes it.

There is one file for each named instance, in a folder that only its user can enter. It says where the
server is, which process it is, and where its work folder lies; the tokens are never copied into it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from tsbatch.errors import ServerError, UsageError
from tsbatch.serving.management_client import Management
from tsbatch.serving.tokens import FixedToken, KeyFile, TokenSource
from tsbatch.system.processes import ProcessRef, end_marked
from tsbatch.system.state_directory import state_folder, write_private

SCHEMA = 1
DEFAULT_NAME = "default"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

WORK_PREFIX = "tsbatch-"
SECONDS_TO_STOP = 20
"""TorchServe closes its ports, waits two seconds for calls that run, and kills its workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One named server of this user.

    Attributes:
        name: its name.
        process: the Java process.
        owner: the process that renews its tokens: the one that serves in the foreground, or a keeper.
        detached: whether the owner is a keeper, which ends with the server.
        work_dir: the server's private folder; removed when it stops.
        log_dir: where TorchServe writes its logs.
        model_store: TorchServe's model store.
        private_store: whether the store lies in the work folder and is ours to fill.
        token_lifetime: seconds a token lives; 0 when the server asks for none.
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
        """Where to get tokens for its addresses."""
        return self.keys if self.token_lifetime else FixedToken(None)

    def management(self) -> Management:
        """A client of its management API."""
        return Management(self.management_address, self.tokens, log_dir=self.log_dir)

    def running(self) -> bool:
        """Whether its Java process still runs."""
        return self.process.running()

    def save(self) -> None:
        """Write the state file, all of it or nothing."""
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        values = {"schema": SCHEMA, **asdict(self)}
        write_private(state_file(self.name), json.dumps(values, default=str, indent=2) + "\n")

    def forget(self) -> None:
        """Remove the state file, unless another server took the name over."""
        with contextlib.suppress(ServerError, UsageError):
            saved = load(self.name)
            if saved is None or saved.process == self.process:
                state_file(self.name).unlink(missing_ok=True)

    def detach_to(self, keeper: ProcessRef) -> Instance:
        """The same instance, owned by a keeper from now on; saved."""
        detached = replace(self, owner=keeper, detached=True)
        detached.save()
        return detached

    def stop(self) -> None:
        """End every process of the server and remove its folder and state file."""
        if self.detached:
            self.owner.terminate()
        self.process.terminate()
        self.process.wait_gone(SECONDS_TO_STOP)
        self.clean()
        if self.owner.pid != os.getpid():
            self.owner.wait_gone(5)

    def clean(self) -> None:
        """End what is left of the server and remove its folder and state file."""
        end_marked(str(self.work_dir))
        if self.work_dir.name.startswith(WORK_PREFIX):
            shutil.rmtree(self.work_dir, ignore_errors=True)
        self.forget()


def state_file(name: str) -> Path:
    """The state file of an instance.

    Raises:
        UsageError: when the name is none.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no instance name; expected letters, digits, '-', '_' and '.', at most 64")
    return state_folder() / f"{name}.json"


def load(name: str) -> Instance | None:
    """The instance with this name as it was saved, running or not; None when there is none.

    Raises:
        ServerError: when its state file cannot be read.
    """
    path = state_file(name)
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ServerError(f"cannot read the state file {path}: {error}; remove it") from error
    if values.pop("schema", None) != SCHEMA:
        raise ServerError(f"{path} was written by another version of tsbatch; stop that server with it")
    values |= {key: Path(values[key]) for key in ("work_dir", "log_dir", "model_store")}
    values |= {key: ProcessRef(**values[key]) for key in ("process", "owner")}
    return Instance(**values)


def find(name: str) -> Instance:
    """The running instance with this name. What a server that ended by itself left behind is cleaned up.

    Raises:
        UsageError: when there is none, with the names that exist.
        ServerError: when it ended by itself.
    """
    instance = load(name)
    if instance is None:
        others = ", ".join(names()) or "none"
        raise UsageError(f"no server named {name!r} is running; running: {others}; start one with: tsbatch serve")
    if not instance.running():
        instance.clean()
        raise ServerError(f"the server {name!r} (process {instance.process.pid}) ended by itself; start it again")
    return instance


def names() -> list[str]:
    """The names of all instances that have a state file."""
    return sorted(path.stem for path in state_folder().glob("*.json") if NAME.fullmatch(path.stem))


def running_here(name: str) -> bool:
    """Whether a server with this name runs; what a dead one left behind is cleaned up.

    Raises:
        ServerError: when its state file cannot be read.
    """
    instance = load(name)
    if instance is None:
        return False
    if instance.running():
        return True
    instance.clean()
    return False


def own_process() -> ProcessRef:
    """This process."""
    return ProcessRef(os.getpid(), psutil.Process().create_time())
