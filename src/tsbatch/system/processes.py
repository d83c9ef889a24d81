"""Find, watch and end the processes of a server, whichever process started them.

Everything a server starts inherits the environment variable :data:`MARK`. A process group would miss workers whose
handler opened a session of its own, and the list of children is lost when Java is killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import psutil

from tsbatch.system.polling import wait_until

MARK = "TSBATCH_SERVER"
"""Environment variable with the server's work folder, set in every process of the server."""

GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process by its id and creation time (seconds since the epoch), because systems reuse process ids."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessRef:
        """The process that has this id now.

        Raises:
            psutil.NoSuchProcess: there is none.
        """
        return cls(pid, psutil.Process(pid).create_time())

    def running(self) -> bool:
        """Whether the process is still running; a zombie is not."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def terminate(self) -> None:
        """Send SIGTERM if the process is still running."""
        if self.running():
            with contextlib.suppress(*GONE):
                psutil.Process(self.pid).terminate()

    def wait_gone(self, seconds: float) -> bool:
        """Wait until the process has ended; false if it is still running after ``seconds``."""
        return wait_until(lambda: not self.running(), seconds, interval=0.05)


def own_process() -> ProcessRef:
    """Return this process."""
    return ProcessRef.of(os.getpid())


def detached() -> dict[str, Any]:
    """Return the arguments of Popen that keep a terminal's Ctrl-C and hang-up from reaching the process."""
    if os.name == "nt":
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"start_new_session": True}


def start_detached(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Run a module with ``python -m`` as a silent process that outlives this one and its terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **detached(),
    )


def marked(mark: str) -> list[psutil.Process]:
    """List the running processes that carry this mark, except the calling one."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _carries(process, mark)]


def end_marked(mark: str) -> None:
    """Kill the processes that carry this mark until none is left."""
    for _ in range(20):
        if not (found := marked(mark)):
            return
        for process in found:
            with contextlib.suppress(*GONE):
                process.kill()
        psutil.wait_procs(found, timeout=1)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
