"""Memory of this machine's GPUs in bytes, read from nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

MEBIBYTE = 1 << 20
PROGRAM = "nvidia-smi"
SECONDS = 30.0


def held(pids: Collection[int]) -> dict[int, Counter[str]]:
    """Return each process's memory by GPU; empty if nvidia-smi does not know the processes.

    That is so in a container that does not see the host's processes.
    """
    found: dict[int, Counter[str]] = {}
    if not pids:
        return found
    for gpu, pid, memory in _query("--query-compute-apps=gpu_uuid,pid,used_memory"):
        if pid.isdigit() and int(pid) in pids:
            found.setdefault(int(pid), Counter())[gpu] += int(memory) * MEBIBYTE
    return found


def free() -> dict[str, int]:
    """Return the free memory of each GPU."""
    return _of_each("memory.free")


def total() -> dict[str, int]:
    """Return the size of each GPU's memory."""
    return _of_each("memory.total")


def together(processes: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Add up the memory of several processes by GPU."""
    return sum(map(Counter, processes), Counter())


def _of_each(what: str) -> dict[str, int]:
    return {gpu: int(memory) * MEBIBYTE for gpu, memory in _query(f"--query-gpu=uuid,{what}")}


def _query(query: str) -> list[list[str]]:
    """Return nvidia-smi's rows whose last cell is a number."""
    if shutil.which(PROGRAM) is None:
        return []
    command = [PROGRAM, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [row for row in rows if row[-1].isdigit()]
