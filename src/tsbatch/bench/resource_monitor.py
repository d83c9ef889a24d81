"""Monitor CPU and memory of the server's processes during a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from tsbatch.system import gpus


@dataclass(slots=True)
class ProcessUsage:
    """A process and its resource usage since the start of the measurement.

    Attributes:
        name: its name in reports.
        process: the process.
        began: start of the measurement; ``cpu_before`` is its CPU time in seconds then.
        cpu: cores used on average until the last sample.
        rss: maximum resident memory, bytes.
        private: memory not shared with other processes, bytes; None if the system does not report it.
        gone: whether it has ended since.
    """

    name: str
    process: psutil.Process
    began: float = 0.0
    cpu_before: float = 0.0
    cpu: float = 0.0
    rss: int = 0
    private: int | None = None
    gone: bool = False


@dataclass(slots=True)
class ResourceMonitor:
    """Monitors processes of this machine.

    Args:
        pids: name and process id of each; missing processes and those of other users are skipped.
    """

    pids: Mapping[str, int]
    processes: list[ProcessUsage] = field(default_factory=list)

    def begin(self) -> None:
        """Start the measurement, at the end of the warm-up."""
        self.processes = []
        for name, pid in self.pids.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                self.processes.append(ProcessUsage(name, process, time.monotonic(), _cpu(process)))

    def sample(self) -> None:
        """Record the present usage; cheap enough for twice a second."""
        for one in self.processes:
            one.gone = True
            with contextlib.suppress(psutil.Error):
                one.rss = max(one.rss, one.process.memory_info().rss)
                one.cpu = (_cpu(one.process) - one.cpu_before) / max(time.monotonic() - one.began, 1e-9)
                one.gone = False

    def end(self) -> list[dict[str, Any]]:
        """Return the usage of each process."""
        self.sample()
        for one in self.processes:
            # Reads every page table entry, which is too slow for every sample.
            with contextlib.suppress(psutil.Error):
                one.private = getattr(one.process.memory_full_info(), "uss", None)
        gpu_memory = gpus.held({one.process.pid for one in self.processes})
        return [
            {
                "name": one.name,
                "pid": one.process.pid,
                "cpu": round(one.cpu, 3),
                "memory_rss": one.rss,
                "memory_private": one.private,
                "memory_gpus": dict(gpu_memory.get(one.process.pid, {})),
                "gone": one.gone,
            }
            for one in self.processes
        ]


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
