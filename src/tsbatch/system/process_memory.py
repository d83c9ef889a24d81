"""What memory a process holds alone, and what it shares: bytes, for the worker itself and for whoever watches it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

KILOBYTE = 1024
CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
"""Where a control group says its limit and use, version 2 and version 1."""

OOM_COUNTER = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one process.

    Attributes:
        private: held by this process alone; what another worker of the same model costs.
        shared: mapped by others too, or read from files that they would share.
        peak: the most it ever held in memory, shared or not.
    """

    private: int
    shared: int
    peak: int

    def as_json(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


def memory_of(pid: int) -> Memory:
    """The memory of a running process.

    Raises:
        psutil.Error: there is no such process, or it is somebody else's.
    """
    resident, peak = resident_and_peak(pid)
    try:
        private = _private(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:  # not Linux
        private = psutil.Process(pid).memory_full_info().uss
    return Memory(private, max(0, resident - private), peak)


def resident_and_peak(pid: int) -> tuple[int, int]:
    """Bytes that a process holds in memory now, and the most it ever held.

    Raises:
        psutil.Error: there is no such process, or it is somebody else's.
    """
    info = psutil.Process(pid).memory_info()
    try:
        peak = _kilobytes(Path(f"/proc/{pid}/status").read_text(), "VmHWM:")
    except (OSError, ValueError):
        peak = int(getattr(info, "peak_wset", info.rss))  # Windows keeps it under this name
    return info.rss, max(info.rss, peak)


def available() -> int:
    """Bytes that new processes may use here: what is free, within the control group's limit."""
    groups = (_left(*group) for group in CGROUPS)
    return min([psutil.virtual_memory().available, *(left for left in groups if left is not None)])


def _left(folder: Path, limit: str, used: str) -> int | None:
    try:
        left = int((folder / limit).read_text()) - int((folder / used).read_text())
        figures = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # there is none, or it is "max"
        return None
    # Files that were read count as used, and make room when it is needed.
    return left + int(figures.get("total_inactive_file", figures.get("inactive_file", 0)))


def kills() -> int | None:
    """How many processes this machine has killed for memory since it started; None where nobody counts."""
    if sys.platform != "linux":
        return None
    try:
        return int(dict(line.split() for line in OOM_COUNTER.read_text().splitlines())["oom_kill"])
    except (OSError, KeyError, ValueError):
        return None


def _private(rollup: str) -> int:
    return _kilobytes(rollup, "Private_Clean:") + _kilobytes(rollup, "Private_Dirty:")


def _kilobytes(text: str, key: str) -> int:
    for line in text.splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * KILOBYTE
    raise ValueError(f"no {key} in what the system says of a process")
