"""The processes of a server, found again whoever started them and whatever became of their parent.

Everything a server starts inherits the environment variable :data:`MARK`. A process group would lose the
workers whose handler opened a session of its own, and a list of children is gone once Java was killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psutil

MARK = "TSBATCH_SERVER"
"""Environment variable that holds the server's work folder in every process of the server."""

GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process by its id and the time it was created (seconds since the epoch), since ids are used again."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessRef:
        """The process that has this id now.

        Raises:
            psutil.NoSuchProcess: when there is none.
        """
        return cls(pid, psutil.Process(pid).create_time())

    def running(self) -> bool:
        """Whether it still runs; a zombie does not."""
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.created) < 1 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def terminate(self) -> None:
        """Ask it to end (SIGTERM), if it still runs."""
        if self.running():
            with contextlib.suppress(*GONE):
                psutil.Process(self.pid).terminate()

    def wait_gone(self, seconds: float) -> bool:
        """Wait until it has ended; False when it still runs after ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def apart() -> dict[str, Any]:
    """Arguments of Popen that start a process which a terminal's Ctrl-C and hang-up do not reach."""
    if os.name == "nt":
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"start_new_session": True}


def marked(mark: str) -> list[psutil.Process]:
    """Every running process that carries this mark, except the one that asks."""
    return [process for process in psutil.process_iter() if process.pid != os.getpid() and _carries(process, mark)]


def end_marked(mark: str) -> None:
    """Kill every process that carries this mark, until none is left."""
    for _ in range(20):
        found = marked(mark)
        if not found:
            return
        _kill(found)


def _kill(found: Iterable[psutil.Process]) -> None:
    for process in found:
        with contextlib.suppress(*GONE):
            process.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))
    psutil.wait_procs(list(found), timeout=1)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False
