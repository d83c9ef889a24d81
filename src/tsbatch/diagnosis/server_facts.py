"""Facts about a model from a running server, and the capacity of its machine."""

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
    """Return a model's settings and, for a server on this machine, memory, cores and threads.

    Raises:
        ModelNotFound: the server has no such model or version.
        ServerError: the server is unreachable or fails.
    """
    described = management.describe(name, version)
    return Known.of_described(described, **(capacity_of(described.get("workers", ())) if management.is_local else {}))


def capacity_of(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return cores, free memory, and the use of these workers of this machine, by the fields of :class:`Known`."""
    capacity: dict[str, Any] = {"cores": usable_cores(), "free_memory": psutil.virtual_memory().available}
    memory, threads = [], set()
    for worker in workers:
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(worker["pid"])
            setting = process.environ().get(THREADS, "")
            memory.append(private_memory(process))
            threads.add(int(setting) if setting.isdigit() else None)
    if memory:
        capacity["worker_memory"] = max(memory)
    if len(threads - {None}) == 1:
        (capacity["threads"],) = threads - {None}
    return capacity


def private_memory(process: psutil.Process) -> int:
    """Return a process's private memory in bytes, without memory-mapped weights that workers share.

    Raises:
        psutil.Error: it has ended, or belongs to another user.
    """
    with contextlib.suppress(AttributeError, psutil.AccessDenied):
        return int(process.memory_full_info().uss)
    return int(process.memory_info().rss)
