"""What the GPUs of this machine have and hold, in bytes, as nvidia-smi tells it."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

MEBIBYTE = 1 << 20
PROGRAM = "nvidia-smi"
SECONDS = 30.0


def held(pids: Collection[int]) -> dict[int, Counter[str]]:
    """What these processes hold of each GPU; empty where nobody can tell.

    In a container without the host's processes it knows none of them.
    """
    found: dict[int, Counter[str]] = {}
    if not pids:
        return found
    for gpu, pid, memory in _ask("--query-compute-apps=gpu_uuid,pid,used_memory"):
        if pid.isdigit() and int(pid) in pids:
            found.setdefault(int(pid), Counter())[gpu] += int(memory) * MEBIBYTE
    return found


def free() -> dict[str, int]:
    """What is free on each GPU."""
    return _of_each("memory.free")


def total() -> dict[str, int]:
    """What each GPU has."""
    return _of_each("memory.total")


def together(processes: Iterable[Mapping[str, int]]) -> Counter[str]:
    """What processes hold of each GPU together."""
    found: Counter[str] = Counter()
    for one in processes:
        found.update(one)
    return found


def _of_each(what: str) -> dict[str, int]:
    return {gpu: int(memory) * MEBIBYTE for gpu, memory in _ask(f"--query-gpu=uuid,{what}")}


def _ask(query: str) -> list[list[str]]:
    """Its rows whose last cell is a number."""
    if shutil.which(PROGRAM) is None:
        return []
    command = [PROGRAM, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [row for row in rows if row[-1].isdigit()]
