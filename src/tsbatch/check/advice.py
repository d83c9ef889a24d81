"""Recommended timeouts and number of workers, each with the calculation behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsbatch.system.process_memory import Memory

GIGABYTE = 10**9
MEGABYTE = 10**6
STEP = 10
MIN_TIMEOUT = 30
"""Seconds; a busy machine takes that long to do nothing."""

LOAD_FACTOR = 1.5
SECONDS_PER_GIGABYTE = 10
"""For a cold disk that reads 100 MB/s: the files that were just unpacked are still in memory."""

BATCH_FACTOR = 10
MEMORY_SHARE = 0.8
"""Share of the available memory; the rest is for the frontend, for requests and for other processes."""

MIN_GIGABYTES = 0.1
"""Size of the files from which the time to read them appears in the reason."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A number and the reason for it.

    Attributes:
        value: seconds, or workers.
        reason: the calculation.
    """

    value: int
    reason: str


def startup_timeout(seconds: float, *, size: int = 0, workers: int = 1, cores: int = 1) -> Advice:
    """Recommend a startupTimeout for a load that took ``seconds`` here.

    1.5 × the load, × workers / cores if more workers than cores load at once, + 10 s per GB of files for a cold disk;
    rounded up to 10 s, at least 30 s. TorchServe counts from the load command, when Python is already running
    (wlm/WorkerThread.java).

    Args:
        seconds: the load, without unpacking and without starting Python.
        size: bytes of the archive's files.
        workers: workers that load at once.
        cores: usable cores.
    """
    contention = max(1.0, workers / max(cores, 1))
    gigabytes = size / GIGABYTE
    value = _rounded(LOAD_FACTOR * seconds * contention + SECONDS_PER_GIGABYTE * gigabytes)
    parts = [f"{LOAD_FACTOR} × the load of {seconds:.1f} s"]
    if contention > 1:
        parts.append(f"× {workers} workers on {cores} cores")
    if gigabytes >= MIN_GIGABYTES:
        parts.append(f"+ {SECONDS_PER_GIGABYTE} s for each of {gigabytes:.1f} GB from a cold disk")
    return Advice(value, f"{' '.join(parts)}, rounded up to {STEP} s, at least {MIN_TIMEOUT}")


def response_timeout(slowest: float, batch: int) -> Advice:
    """Recommend a responseTimeout: 10 × the seconds of the slowest full batch, rounded up, at least 30 s."""
    reason = (
        f"{BATCH_FACTOR} × the slowest batch of {batch} ({slowest:.2f} s), rounded up to {STEP} s, at least "
        f"{MIN_TIMEOUT}; TorchServe kills a worker that exceeds it, with its whole batch"
    )
    return Advice(_rounded(BATCH_FACTOR * slowest), reason)


def workers(first: Memory, second: Memory | None, *, available: int, cores: int, gpu: int | None = None) -> Advice:
    """Recommend the number of workers for this machine.

    Args:
        first: the first worker's memory.
        second: the memory of a second worker beside it; None if it was not measured, then the first's is used.
        available: usable bytes, not counting either worker.
        cores: usable cores.
        gpu: how many workers fit on the GPU; None without a GPU.
    """
    each = max((second or first).private, 1)
    free = MEMORY_SHARE * available - first.private - first.shared
    limits = {"cores": cores, "memory": max(1, 1 + int(free / each))}
    if gpu is not None:
        limits["GPU memory"] = max(1, gpu)
    value = min(limits.values())
    reason = (
        f"{', '.join(f'{limit} by {what}' for what, limit in limits.items())}; each additional worker costs "
        f"{each / MEGABYTE:.0f} MB, {available / GIGABYTE:.1f} GB are available, and {cores} cores give each of "
        f"{value} workers {max(1, cores // value)}"
    )
    return Advice(value, reason)


def _rounded(seconds: float) -> int:
    return max(MIN_TIMEOUT, STEP * math.ceil(seconds / STEP))
