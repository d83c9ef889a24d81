"""Whether more workers of a model, or a second version of it, find memory beside what there is, before they load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil

from tsbatch.system import gpus
from tsbatch.system.process_memory import available, memory_of

GIGABYTE = 10**9
MARGIN = 1.1
"""Of what the running version's workers hold: a load needs more for a moment."""


def lack_of_room(model: Mapping[str, Any], workers: int | None = None) -> str | None:
    """What is missing for a second version beside a described one; None when nothing is.

    On the CPU what counts is each worker's private memory: memory-mapped weights are shared by both versions.

    Args:
        model: as the server describes it.
        workers: how many the second version has; as many as the first when left out.
    """
    who = "both versions need"
    if lack := _lack_of_memory(model, workers, who):
        return lack
    share, free = _share(model, workers), gpus.free() if _on_gpus(model) else {}
    for gpu, needed in gpus.together(gpus.held(_on_gpus(model)).values()).items():
        if share * needed > free.get(gpu, 0):
            return f"{who} {_gb(share * needed)} more on {gpu}, and {_gb(free.get(gpu, 0))} are free"
    return None


def lack_for_more(model: Mapping[str, Any], workers: int) -> str | None:
    """What is missing for as many workers of a described model beside those that there are; None when nothing is.

    On which GPU a worker comes TorchServe decides by a counter of its own; one of them must have room for one.
    """
    who = f"{workers} more worker{'s need' if workers > 1 else ' needs'}"
    if lack := _lack_of_memory(model, workers, who):
        return lack
    each = max((max(one.values()) for one in gpus.held(_on_gpus(model)).values()), default=0)
    most = max(gpus.free().values(), default=0) if each else 0
    if MARGIN * each > most:
        return f"one more worker needs {_gb(MARGIN * each)} of a GPU, and the emptiest one has {_gb(most)} free"
    return None


def _lack_of_memory(model: Mapping[str, Any], workers: int | None, who: str) -> str | None:
    present = _present(model)
    try:
        needed = _share(model, workers) * sum(memory_of(worker["pid"]).private for worker in present)
    except (psutil.Error, OSError, ValueError):  # a worker ended meanwhile, or a system that does not tell
        return None
    return f"{who} {_gb(needed)} more, and {_gb(available())} are free" if needed > available() else None


def _share(model: Mapping[str, Any], workers: int | None) -> float:
    """Of what the workers hold, what so many more of them will."""
    present = len(_present(model))
    return MARGIN * (1 if workers is None or not present else workers / present)


def _present(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [worker for worker in model["workers"] if worker["pid"] > 0]


def _on_gpus(model: Mapping[str, Any]) -> set[int]:
    return {worker["pid"] for worker in _present(model) if worker.get("gpu")}


def _gb(count: float) -> str:
    return f"{count / GIGABYTE:.1f} GB"
