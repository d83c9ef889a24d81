"""A Ray of one node on this machine, started by ``tsbatch ray deploy --local`` and ended by ``undeploy``.

It listens on 127.0.0.1 alone, wants a token of its own, and lives on when the command ends. What belongs to it is found
again by an environment variable that all of its processes inherit, so that ending it ends nothing else (``ray stop``
would end every Ray here).
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

from tsbatch.errors import ServerError
from tsbatch.ray import haproxy
from tsbatch.system.polling import wait_until
from tsbatch.system.ports import free_ports
from tsbatch.system.processes import MARK, ProcessRef, detached, end_marked
from tsbatch.system.state_directory import read_state, state_folder, write_private, write_state

SECONDS_TO_START: Final = 60
OBJECT_STORE: Final = 100_000_000
"""Bytes; requests and answers travel past it."""
ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Despite its name this is what keeps all of Ray's own ports on 127.0.0.1, and those who connect from asking another
    # of the machine's addresses (ray/_private/services.py, resolve_ip_for_localhost).
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


@dataclass(frozen=True, slots=True)
class LocalRay:
    """The Ray that was started here.

    Attributes:
        address: as ``127.0.0.1:6379``.
        work_dir: its private folder.
        process: ``ray start --block``, the parent of the rest.
        haproxy: whether HAProxy takes the requests, in place of Ray's proxies.
    """

    address: str
    work_dir: str
    process: ProcessRef
    haproxy: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment, before it imports Ray, to be let in."""
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Path(self.work_dir, "token"))}
        return {**ENVIRONMENT, **token, **(haproxy.environment(Path(self.work_dir)) if self.haproxy else {})}

    @property
    def logs(self) -> str:
        """Where its logs lie."""
        return str(Path(self.work_dir, "session_latest", "logs"))


def start(cores: int | None = None, *, with_haproxy: bool = False) -> LocalRay:
    """Start it, and wait until it takes connections.

    Args:
        cores: what its replicas can reserve; the machine's when left out.
        with_haproxy: HAProxy takes the requests, in place of Ray's proxies.

    Raises:
        ServerError: it ended, or did not come up.
        UsageError: HAProxy cannot be had here.
    """
    if with_haproxy:
        haproxy.check()
    folder = Path(tempfile.mkdtemp(prefix="tsb-ray-"))  # short: Ray's sockets lie in it, and their paths have 107 bytes
    write_private(folder / "token", secrets.token_hex(32))
    port, metrics, agent, client, *of_haproxy = free_ports(6)
    address = f"127.0.0.1:{port}"
    own = LocalRay(address, str(folder), ProcessRef(0, 0), with_haproxy).environment
    if with_haproxy:
        own |= haproxy.ports(*of_haproxy)
        haproxy.make_folder(folder)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *("--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder}", "--include-dashboard=false"),
        *(f"--metrics-export-port={metrics}", f"--dashboard-agent-listen-port={agent}"),
        *(f"--ray-client-server-port={client}", f"--object-store-memory={OBJECT_STORE}"),
    ]
    command += [] if cores is None else [f"--num-cpus={cores}"]
    with (folder / "start.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **own, MARK: str(folder)},
            **detached(),
        )
    found = LocalRay(address, str(folder), ProcessRef.of(process.pid), with_haproxy)
    try:
        write_state(_state_file(), asdict(found))
        _wait(process, folder / "start.log")
    except BaseException:
        end(found)
        raise
    finally:
        process.returncode = 0  # it lives on without this process, of which Popen would complain
    return found


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    def started() -> bool:
        return "Ray runtime started" in log.read_text("utf-8", "replace")

    wait_until(lambda: started() or process.poll() is not None, SECONDS_TO_START)
    if not started():
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        raise ServerError(f"Ray could not be started here: {lines[-1][:300] if lines else 'it printed nothing'}")


def running() -> LocalRay | None:
    """The one that runs; None when there is none, or it has ended."""
    try:
        found = read_state(_state_file(), LocalRay)
    except ServerError:
        return None
    if found is None or found.process.running():
        return found
    end(found)
    return None


def end(found: LocalRay) -> None:
    """End it and all that it started, and remove its folder."""
    found.process.terminate()
    found.process.wait_gone(10)
    end_marked(found.work_dir)
    psutil.wait_procs([child for child in psutil.Process().children() if child.pid == found.process.pid], timeout=1)
    shutil.rmtree(found.work_dir, ignore_errors=True)
    _state_file().unlink(missing_ok=True)


def _state_file() -> Path:
    return state_folder() / "ray" / "local.json"
