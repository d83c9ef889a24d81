"""What a running server tells of a model, and what its machine has room for."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from tsbatch.diagnosis.model_facts import Known
from tsbatch.serving.management_client import Management
from tsbatch.worker.cpu_cores import usable_cores

THREADS = "OMP_NUM_THREADS"


def known_of(management: Management, name: str, version: str | None = None) -> Known:
    """A model's settings, and on this machine also memory, cores and threads.

    Raises:
        ModelNotFound: the server has no such model or version.
        ServerError: the server cannot be reached or fails.
    """
    described = management.describe(name, version)
    return Known.of_described(described, **(room_of(described.get("workers", ())) if management.is_local else {}))


def room_of(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Cores, free memory, and what one of these workers of this machine takes; by the fields of :class:`Known`."""
    room: dict[str, Any] = {"cores": usable_cores(), "free_memory": psutil.virtual_memory().available}
    processes = list(_processes(workers))
    if processes:
        room["worker_memory"] = max(memory for memory, _ in processes)
    told = {threads for _, threads in processes if threads is not None}
    if len(told) == 1:
        room["threads"] = told.pop()
    return room


def _processes(workers: Sequence[Mapping[str, Any]]) -> list[tuple[int, int | None]]:
    found = []
    for worker in workers:
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(worker["pid"])
            threads = process.environ().get(THREADS, "")
            found.append((private_memory(process), int(threads) if threads.isdigit() else None))
    return found


def private_memory(process: psutil.Process) -> int:
    """Bytes that a process shares with no other: weights read by memory map count once for all workers.

    Raises:
        psutil.Error: it has ended, or is somebody else's.
    """
    with contextlib.suppress(AttributeError, psutil.AccessDenied):
        return int(process.memory_full_info().uss)
    return int(process.memory_info().rss)
