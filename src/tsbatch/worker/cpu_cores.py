"""The number of CPU cores that this process may use. Imports no torch, so that commands start fast."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of usable cores, from the CPU affinity and the CPU quota of the control group (v2, then v1)."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, min(cores, int(quota)) if quota else cores)


def _quota(cgroup: Path) -> float | None:
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError):
            limit, period = " ".join((cgroup / file).read_text() for file in files).split()
            return None if limit == "max" or int(limit) <= 0 else int(limit) / int(period)
    return None
