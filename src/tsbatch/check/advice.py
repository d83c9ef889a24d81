"""What follows from the figures: time-outs and a number of workers, each with the reason that a person can check."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsbatch.system.process_memory import Memory

GIGABYTE = 10**9
MEGABYTE = 10**6
STEP = 10
LEAST = 30
"""Seconds; no time-out below it, since a busy machine takes that long to do nothing."""

LOAD_FACTOR = 1.5
SECONDS_PER_GIGABYTE = 10
"""Reading from a cold disk of 100 MB/s: what was just unpacked is still in memory."""

BATCH_FACTOR = 10
MEMORY_SHARE = 0.8
"""Of the memory that is available; the rest is for the frontend, for requests and for what else runs."""

WORTH_SAYING = 0.1
"""GB of files from which reading them is part of the reason."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A number and why.

    Attributes:
        value: seconds, or workers.
        reason: how it came about.
    """

    value: int
    reason: str


def startup_timeout(seconds: float, *, size: int = 0, workers: int = 1, cores: int = 1) -> Advice:
    """The startupTimeout for a load that took so long here.

    1.5 × the load, × workers / cores where more workers than cores load at once, + 10 s a GB of files for a disk that
    has not read them yet; rounded up to 10 s, at least 30 s. TorchServe counts it from the load command, when Python
    is up already (wlm/WorkerThread.java).

    Args:
        seconds: the load, without unpacking and without starting Python.
        size: bytes of the archive's files.
        workers: workers that load at once.
        cores: usable cores.
    """
    crowd = max(1.0, workers / max(cores, 1))
    gigabytes = size / GIGABYTE
    value = _rounded(LOAD_FACTOR * seconds * crowd + SECONDS_PER_GIGABYTE * gigabytes)
    parts = [f"{LOAD_FACTOR} × the load of {seconds:.1f} s"]
    if crowd > 1:
        parts.append(f"× {workers} workers on {cores} cores")
    if gigabytes >= WORTH_SAYING:
        parts.append(f"+ {SECONDS_PER_GIGABYTE} s for each of {gigabytes:.1f} GB from a cold disk")
    return Advice(value, f"{' '.join(parts)}, rounded up to {STEP} s, at least {LEAST}")


def response_timeout(slowest: float, batch: int) -> Advice:
    """The responseTimeout where the slowest full batch took so many seconds: 10 ×, rounded up, at least 30 s."""
    reason = (
        f"{BATCH_FACTOR} × the slowest batch of {batch} ({slowest:.2f} s), rounded up to {STEP} s, at least {LEAST}; "
        "a worker that misses it is killed with its whole batch"
    )
    return Advice(_rounded(BATCH_FACTOR * slowest), reason)


def workers(first: Memory, second: Memory | None, *, available: int, cores: int, gpu: int | None = None) -> Advice:
    """How many workers this machine has room for.

    Args:
        first: the first worker's memory.
        second: that of a second one beside it; None when it was not measured, and then counts like the first.
        available: bytes that may be used, both workers not counted.
        cores: usable cores.
        gpu: how many workers the GPU has room for; None without one.
    """
    each = max((second or first).private, 1)
    room = MEMORY_SHARE * available - first.private - first.shared
    by_memory = max(1, 1 + int(room / each))
    limits = {"cores": cores, "memory": by_memory, **({} if gpu is None else {"GPU memory": max(1, gpu)})}
    value = min(limits.values())
    each_says = ", ".join(f"{limit} by {what}" for what, limit in limits.items())
    reason = (
        f"{each_says}; a further worker costs {each / MEGABYTE:.0f} MB, "
        f"{available / GIGABYTE:.1f} GB are available, and {cores} cores give each of {value} workers "
        f"{max(1, cores // value)}"
    )
    return Advice(value, reason)


def _rounded(seconds: float) -> int:
    return max(LEAST, STEP * math.ceil(seconds / STEP))
