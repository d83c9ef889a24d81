"""What the server's processes use during a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil

from tsbatch.system import gpus


@dataclass(slots=True)
class Watched:
    """A process, and what it used since it was first looked at.

    Attributes:
        name: what it is called in reports.
        process: the process.
        began: when it was first looked at, ``cpu_before`` its CPU seconds then.
        cpu: cores it used on average until it was last looked at.
        rss: the most resident memory seen, bytes.
        private: memory that it shares with nobody, bytes; None where the system does not tell.
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
class Watch:
    """Watches processes of this machine.

    Args:
        pids: name and process id of each; those that do not exist or are somebody else's are left out.
    """

    pids: Mapping[str, int]
    watched: list[Watched] = field(default_factory=list)

    def begin(self) -> None:
        """Start anew, at the end of the warm-up."""
        self.watched = []
        for name, pid in self.pids.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                self.watched.append(Watched(name, process, time.monotonic(), _cpu(process)))

    def look(self) -> None:
        """Note what they use now; cheap enough for twice a second."""
        for one in self.watched:
            one.gone = True
            with contextlib.suppress(psutil.Error):
                one.rss = max(one.rss, one.process.memory_info().rss)
                one.cpu = (_cpu(one.process) - one.cpu_before) / max(time.monotonic() - one.began, 1e-9)
                one.gone = False

    def end(self) -> list[dict[str, Any]]:
        """What each of them used."""
        self.look()
        for one in self.watched:
            # Reads every page's entry: too much for every look.
            with contextlib.suppress(psutil.Error):
                one.private = getattr(one.process.memory_full_info(), "uss", None)
        on_gpus = gpus.held({one.process.pid for one in self.watched})
        return [
            {
                "name": one.name,
                "pid": one.process.pid,
                "cpu": round(one.cpu, 3),
                "memory_rss": one.rss,
                "memory_private": one.private,
                "memory_gpus": dict(on_gpus.get(one.process.pid, {})),
                "gone": one.gone,
            }
            for one in self.watched
        ]


def on_gpus(workers: Iterable[Mapping[str, Any]]) -> list[int] | None:
    """What each of the watched processes holds of all GPUs, bytes; None when none holds any."""
    held = [sum(one.get("memory_gpus", {}).values()) for one in workers]
    return held if any(held) else None


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
