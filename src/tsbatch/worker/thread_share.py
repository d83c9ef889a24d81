"""A worker's share of the cores, kept right while its siblings come and go.

TorchServe starts several workers and tells none of them how many they are; ``scale`` changes the number later. Two
workers that each use all cores get in each other's way: on two cores they served fewer than half the requests of
one. So ``threads: auto`` divides the usable cores by the workers of the model: those that model-config.yaml
starts, or those that run, whichever are more.
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
"""Between two looks at the process table; a look takes some milliseconds."""
_PROC = Path("/proc")


class ThreadShare:
    """Sets this worker's threads, and sets them again when the number of its siblings has changed.

    Args:
        setting: ``auto``, or the number to keep.
        config: model-config.yaml; ``minWorkers`` is how many workers TorchServe starts.
        cores: usable cores.
    """

    def __init__(self, setting: int | str, config: Mapping[str, Any], cores: int) -> None:
        self._setting = setting
        self._config = config
        self._cores = cores
        self._next_look = 0.0
        self.threads = 0
        if is_worker():
            one_operator_at_a_time()

    def refresh(self) -> None:
        """Look at the siblings when it is time to, and follow. Cheap enough for every batch."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + CHECK_SECONDS if self._setting == "auto" else float("inf")
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
    """TorchServe workers of this model version that run now, this one included; 1 where that cannot be known.

    They are the children of the same frontend in the same folder: the unpacked archive (WorkerLifeCycle.java).
    """
    if not is_worker():
        return 1
    try:
        folder = (_PROC / "self/cwd").readlink()  # os.getcwd() fails once somebody has removed the folder
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
        return False  # it ended meanwhile, or belongs to somebody else
