"""What a pod asks Kubernetes for, from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsbatch.kserve.archive_facts import Facts

MEBI = 1 << 20
STEP = 64 * MEBI
HEAP = 512
"""MiB of Java's heap. Left alone, Java takes a quarter of the pod's memory, which the workers then lack."""

FRONTEND = 2 * HEAP * MEBI
"""Bytes of TorchServe's frontend: the heap, and as much beside it for buffers of requests and for Java itself."""

LOGS = 5 * 6 * 100 * 10**6
"""Bytes of TorchServe's logs at most: five files of 100 MB, each with five older ones (its log4j2.xml)."""

ROOM = 1.2
"""What was measured, times this: larger requests than the samples, and what grows with time."""

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one pod.

    Attributes:
        cpu: cores.
        memory: bytes.
        disk: bytes of its own file system: the storage's copy, what TorchServe unpacks, and its logs.
        gpus: whole ones.
        reason: how the memory came about.
    """

    cpu: int
    memory: int
    disk: int
    gpus: int
    reason: str

    def as_kubernetes(self) -> dict[str, dict[str, str]]:
        """Requests and limits.

        Both are the same. A pod that may use more memory than it asked for is killed when its node is short of it, and
        ``threads: auto`` divides the cores that the limit says.
        """
        found = {
            "cpu": str(self.cpu),
            "memory": f"{self.memory // MEBI}Mi",
            "ephemeral-storage": f"{self.disk // MEBI}Mi",
        }
        if self.gpus:
            found[GPU] = str(self.gpus)
        return {"requests": dict(found), "limits": dict(found)}


def resources(facts: Facts, *, gpus: int | None = None) -> Resources:
    """What a pod of this archive needs.

    Args:
        facts: the archive.
        gpus: whole GPUs; None for one when it was checked with a GPU, else none.
    """
    # All workers load at once, and each may need more then than later.
    loading = max(0, facts.peak - facts.private - facts.shared)
    workers = facts.private + facts.shared + (facts.workers - 1) * facts.further + facts.workers * loading
    memory = _rounded(FRONTEND + ROOM * workers)
    return Resources(
        cpu=facts.workers * facts.threads,
        memory=memory,
        disk=_rounded(2 * facts.unpacked + LOGS),
        gpus=int(facts.gpu) if gpus is None else gpus,
        reason=(
            f"{FRONTEND // MEBI} MiB for TorchServe's frontend + {ROOM} × {workers / MEBI:.0f} MiB measured for "
            f"{facts.workers} worker{'s' * (facts.workers > 1)}, rounded up to {STEP // MEBI} MiB"
        ),
    )


def _rounded(size: float) -> int:
    return STEP * math.ceil(size / STEP)
