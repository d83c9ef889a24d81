"""Check the free memory before more workers or a second version of a model are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil

from tsbatch.system import gpus
from tsbatch.system.process_memory import available, memory_of

GIGABYTE = 10**9
MARGIN = 1.1
"""Factor on the memory of the running workers, because a load briefly needs more."""


def lack_of_room(model: Mapping[str, Any], workers: int | None = None) -> str | None:
    """Say what memory a second version of a described model lacks; None if there is enough.

    On the CPU each worker's private memory counts, because both versions share memory-mapped weights.

    Args:
        model: the server's description.
        workers: workers of the second version; as many as the first by default.
    """
    need = "both versions need"
    if lack := _lack_of_memory(model, workers, need):
        return lack
    share, free = _share(model, workers), gpus.free() if _on_gpus(model) else {}
    for gpu, needed in gpus.together(gpus.held(_on_gpus(model)).values()).items():
        if share * needed > free.get(gpu, 0):
            return f"{need} {_gb(share * needed)} more memory on {gpu}, but only {_gb(free.get(gpu, 0))} is free"
    return None


def lack_for_more(model: Mapping[str, Any], workers: int) -> str | None:
    """Say what memory this many more workers of a described model lack; None if there is enough.

    TorchServe assigns workers to GPUs in turn; at least one GPU must have enough memory for one worker.
    """
    need = f"{workers} more worker{'s need' if workers > 1 else ' needs'}"
    if lack := _lack_of_memory(model, workers, need):
        return lack
    each = max((max(one.values()) for one in gpus.held(_on_gpus(model)).values()), default=0)
    free = max(gpus.free().values(), default=0) if each else 0
    if MARGIN * each > free:
        return f"one more worker needs {_gb(MARGIN * each)} of GPU memory, but the emptiest GPU has {_gb(free)} free"
    return None


def _lack_of_memory(model: Mapping[str, Any], workers: int | None, need: str) -> str | None:
    present = _present(model)
    try:
        needed = _share(model, workers) * sum(memory_of(worker["pid"]).private for worker in present)
    except (psutil.Error, OSError, ValueError):  # a worker ended meanwhile, or the system does not report it
        return None
    return f"{need} {_gb(needed)} more memory, but only {_gb(available())} is free" if needed > available() else None


def _share(model: Mapping[str, Any], workers: int | None) -> float:
    """Return the memory of this many workers as a multiple of what the present ones use."""
    present = len(_present(model))
    return MARGIN * (1 if workers is None or not present else workers / present)


def _present(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [worker for worker in model["workers"] if worker["pid"] > 0]


def _on_gpus(model: Mapping[str, Any]) -> set[int]:
    return {worker["pid"] for worker in _present(model) if worker.get("gpu")}


def _gb(count: float) -> str:
    return f"{count / GIGABYTE:.1f} GB"
