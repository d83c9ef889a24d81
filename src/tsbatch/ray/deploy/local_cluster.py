"""A one-node Ray on this machine, started by ``tsbatch ray deploy --local`` and stopped by ``undeploy``.

It listens only on 127.0.0.1, requires its own token, and keeps running when the command ends. All of its processes
inherit an environment variable that identifies them, so stopping it stops nothing else (``ray stop`` would stop every
Ray on the machine).
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
"""Bytes; requests and answers do not use it."""
ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Despite its name, this keeps all of Ray's own ports on 127.0.0.1, and makes clients connect there instead of to
    # another address of the machine (ray/_private/services.py, resolve_ip_for_localhost).
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


@dataclass(frozen=True, slots=True)
class LocalRay:
    """A Ray that was started on this machine.

    Attributes:
        address: its address, as ``127.0.0.1:6379``.
        work_dir: its private folder.
        process: ``ray start --block``, the parent of all others.
        haproxy: whether HAProxy takes the requests instead of Ray's proxies.
    """

    address: str
    work_dir: str
    process: ProcessRef
    haproxy: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that a process needs, before it imports Ray, to connect."""
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(Path(self.work_dir, "token"))}
        return {**ENVIRONMENT, **token, **(haproxy.environment(Path(self.work_dir)) if self.haproxy else {})}

    @property
    def logs(self) -> str:
        """The folder with its logs."""
        return str(Path(self.work_dir, "session_latest", "logs"))


def start(cores: int | None = None, *, with_haproxy: bool = False) -> LocalRay:
    """Start a Ray, and wait until it accepts connections.

    Args:
        cores: cores that its replicas can reserve; by default all cores.
        with_haproxy: use HAProxy instead of Ray's proxies.

    Raises:
        ServerError: it ended, or did not start in time.
        UsageError: HAProxy cannot be used here.
    """
    if with_haproxy:
        haproxy.check()
    folder = Path(tempfile.mkdtemp(prefix="tsb-ray-"))  # short: paths of sockets are limited to 107 bytes
    write_private(folder / "token", secrets.token_hex(32))
    port, metrics, agent, client, *haproxy_ports = free_ports(6)
    address = f"127.0.0.1:{port}"
    own = LocalRay(address, str(folder), ProcessRef(0, 0), with_haproxy).environment
    if with_haproxy:
        own |= haproxy.ports(*haproxy_ports)
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
        process.returncode = 0  # it outlives this process, and Popen would warn about that
    return found


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    def started() -> bool:
        return "Ray runtime started" in log.read_text("utf-8", "replace")

    wait_until(lambda: started() or process.poll() is not None, SECONDS_TO_START)
    if not started():
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        raise ServerError(f"Ray could not be started here: {lines[-1][:300] if lines else 'it printed nothing'}")


def running() -> LocalRay | None:
    """Return the running one; None if there is none."""
    try:
        found = read_state(_state_file(), LocalRay)
    except ServerError:
        return None
    if found is None or found.process.running():
        return found
    end(found)
    return None


def end(found: LocalRay) -> None:
    """Stop it with all its processes, and remove its folder."""
    found.process.terminate()
    found.process.wait_gone(10)
    end_marked(found.work_dir)
    psutil.wait_procs([child for child in psutil.Process().children() if child.pid == found.process.pid], timeout=1)
    shutil.rmtree(found.work_dir, ignore_errors=True)
    _state_file().unlink(missing_ok=True)


def _state_file() -> Path:
    return state_folder() / "ray" / "local.json"
