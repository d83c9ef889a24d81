"""A worker's share of the CPU cores, updated when the number of workers changes.

TorchServe starts several workers and does not tell them how many there are; ``scale`` changes the number later. Two
workers that each use all cores compete: on two cores they served fewer than half the requests of one worker. So
``threads: auto`` divides the usable cores by the number of workers of the model: those that model-config.yaml starts
or those that are running, whichever is larger.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsbatch.worker.resources import apply_threads, one_operator_at_a_time, threads_for

CHECK_SECONDS = 10.0
"""Seconds between two scans of the process table; a scan takes a few milliseconds."""
_PROC = Path("/proc")


class ThreadShare:
    """Set the number of threads of this worker, again whenever the number of workers changes.

    Args:
        setting: ``auto``, or a fixed number.
        config: model-config.yaml; ``minWorkers`` is the number of workers that TorchServe starts.
        cores: usable cores.
    """

    def __init__(self, setting: int | str, config: Mapping[str, Any], cores: int) -> None:
        self._setting = setting
        self._config = config
        self._cores = cores
        self._next_check = 0.0
        self.threads = 0
        if is_worker():
            one_operator_at_a_time()

    def refresh(self) -> None:
        """Update the number of threads if an update is due. Cheap enough for every batch."""
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS if self._setting == "auto" else float("inf")
        planned = threads_for(self._setting, self._config, self._cores)
        running = running_workers() if self._setting == "auto" else 1
        threads = min(planned, max(1, self._cores // running))
        if threads != self.threads:
            self.threads = threads
            apply_threads(threads)


def is_worker() -> bool:
    """Whether this process is a worker that TorchServe started."""
    return Path(sys.argv[0]).name == "model_service_worker.py"


def running_workers(proc: Path = _PROC) -> int:
    """Count the running TorchServe workers of this model version, including this one; 1 if that cannot be determined.

    They are children of the same frontend and work in the same folder, the unpacked archive (WorkerLifeCycle.java).
    """
    if not is_worker():
        return 1
    try:
        folder = (_PROC / "self/cwd").readlink()  # os.getcwd() fails once the folder is removed
    except OSError:
        return 1
    parent = str(os.getppid())
    return max(1, sum(_is_sibling(process, parent, folder) for process in proc.glob("[0-9]*")))


def _is_sibling(process: Path, parent: str, folder: Path) -> bool:
    try:
        # The name in parentheses may hold anything, also spaces; the parent is the second field after it.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return fields[1] == parent and (process / "cwd").readlink() == folder
    except (OSError, IndexError):
        return False  # it has ended, or belongs to another user
