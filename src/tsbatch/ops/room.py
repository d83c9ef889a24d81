"""Whether a second version of a model finds memory beside the first, before it is loaded."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import psutil

from tsbatch.ops.check.memory import available, memory_of

GIGABYTE = 10**9
MARGIN = 1.1
"""Of what the running version's workers hold: a load needs more for a moment."""

MEBIBYTE = 1 << 20


def lack_of_room(model: Mapping[str, Any], workers: int | None = None) -> str | None:
    """What is missing for a second version beside a described one; None when nothing is.

    On the CPU what counts is each worker's private memory: memory-mapped weights are shared by both versions.

    Args:
        model: as the server describes it.
        workers: how many the second version has; as many as the first when left out.
    """
    present = [worker for worker in model["workers"] if worker["pid"] > 0]
    share = MARGIN * (1 if workers is None or not present else workers / len(present))
    try:
        needed = share * sum(memory_of(worker["pid"]).private for worker in present)
    except (psutil.Error, OSError, ValueError):  # a worker ended meanwhile, or a system that does not tell
        return None
    if needed > available():
        return f"both versions need {_gb(needed)} more for a while, and {_gb(available())} are free"
    return _lack_on_gpus({worker["pid"] for worker in present if worker.get("gpu")}, share)


def _lack_on_gpus(pids: Collection[int], share: float) -> str | None:
    if not pids:
        return None
    used: Counter[str] = Counter()
    for gpu, pid, memory in _ask("--query-compute-apps=gpu_uuid,pid,used_memory"):
        if int(pid) in pids:
            used[gpu] += int(memory) * MEBIBYTE
    free = {gpu: int(memory) * MEBIBYTE for gpu, memory in _ask("--query-gpu=uuid,memory.free")}
    for gpu, needed in used.items():
        if share * needed > free.get(gpu, 0):
            return f"both versions need {_gb(share * needed)} more on {gpu}, and {_gb(free.get(gpu, 0))} are free"
    return None


def _ask(query: str) -> list[list[str]]:
    """Rows of nvidia-smi; none where it cannot tell, in a container without the host's processes for example."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [row for row in rows if row[-1].isdigit()]


def _gb(count: float) -> str:
    return f"{count / GIGABYTE:.1f} GB"
