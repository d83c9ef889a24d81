"""Whether more workers of a model, or a second version of it, find memory beside what there is, before they load."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import psutil

from tsbatch.ops import gpus
from tsbatch.ops.check.memory import available, memory_of

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
    return _lack(model, workers, "both versions need")


def lack_for_more(model: Mapping[str, Any], workers: int) -> str | None:
    """What is missing for as many workers of a described model beside those that there are; None when nothing is."""
    return _lack(model, workers, f"{workers} more worker{'s need' if workers > 1 else ' needs'}")


def _lack(model: Mapping[str, Any], workers: int | None, who: str) -> str | None:
    present = [worker for worker in model["workers"] if worker["pid"] > 0]
    share = MARGIN * (1 if workers is None or not present else workers / len(present))
    try:
        needed = share * sum(memory_of(worker["pid"]).private for worker in present)
    except (psutil.Error, OSError, ValueError):  # a worker ended meanwhile, or a system that does not tell
        return None
    if needed > available():
        return f"{who} {_gb(needed)} more, and {_gb(available())} are free"
    return _lack_on_gpus({worker["pid"] for worker in present if worker.get("gpu")}, share, who)


def _lack_on_gpus(pids: Collection[int], share: float, who: str) -> str | None:
    if not pids:
        return None
    free = gpus.free()
    for gpu, needed in gpus.together(gpus.held(pids).values()).items():
        if share * needed > free.get(gpu, 0):
            return f"{who} {_gb(share * needed)} more on {gpu}, and {_gb(free.get(gpu, 0))} are free"
    return None


def _gb(count: float) -> str:
    return f"{count / GIGABYTE:.1f} GB"
