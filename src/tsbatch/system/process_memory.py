"""Private, shared and peak memory of a process, and free memory of the machine, in bytes."""

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
"""Files with the limit and the use of the control group, version 2 and version 1."""

OOM_COUNTER = Path("/proc/vmstat")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process in bytes.

    Attributes:
        private: used by this process alone; what another worker of the same model costs.
        shared: mapped by other processes too, or read from files that they would share.
        peak: largest resident size so far, shared memory included.
    """

    private: int
    shared: int
    peak: int

    def as_json(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


def memory_of(pid: int) -> Memory:
    """Measure a running process.

    Raises:
        psutil.Error: there is no such process, or it belongs to another user.
    """
    resident, peak = resident_and_peak(pid)
    try:
        private = _private(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:  # not Linux
        private = psutil.Process(pid).memory_full_info().uss
    return Memory(private, max(0, resident - private), peak)


def resident_and_peak(pid: int) -> tuple[int, int]:
    """Return a process's resident size now and at its peak, in bytes.

    Raises:
        psutil.Error: there is no such process, or it belongs to another user.
    """
    info = psutil.Process(pid).memory_info()
    try:
        peak = _kilobytes(Path(f"/proc/{pid}/status").read_text(), "VmHWM:")
    except (OSError, ValueError):
        peak = int(getattr(info, "peak_wset", info.rss))  # the name of the peak on Windows
    return info.rss, max(info.rss, peak)


def available() -> int:
    """Return the bytes that new processes can use: the free memory within the control group's limit."""
    groups = (_left(*group) for group in CGROUPS)
    return min([psutil.virtual_memory().available, *(left for left in groups if left is not None)])


def _left(folder: Path, limit: str, used: str) -> int | None:
    try:
        left = int((folder / limit).read_text()) - int((folder / used).read_text())
        figures = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no control group, or its limit is "max"
        return None
    # The file cache counts as used, but the system frees it on demand.
    return left + int(figures.get("total_inactive_file", figures.get("inactive_file", 0)))


def kills() -> int | None:
    """Return how many processes the machine's OOM killer has killed since boot; None if the system does not count."""
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
    raise ValueError(f"/proc has no {key} for this process")
