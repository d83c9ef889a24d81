"""Calculate the resources of a pod from the figures of the check."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tsbatch.kserve.archive_facts import Facts

MEBI = 1 << 20
STEP = 64 * MEBI
HEAP_MIB = 512
"""Java's heap. By default, Java takes a quarter of the pod's memory, which the workers then lack."""

FRONTEND_BYTES = 2 * HEAP_MIB * MEBI
"""TorchServe's frontend: the heap, and the same again for request buffers and for Java itself."""

LOG_BYTES = 5 * 6 * 100 * 10**6
"""Maximum size of TorchServe's logs: five files of 100 MB, each with five older ones (its log4j2.xml)."""

MARGIN = 1.2
"""Factor on the measured memory, for requests larger than the samples and for growth over time."""

GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources of one pod.

    Attributes:
        cpu: cores.
        memory: bytes.
        disk: bytes of ephemeral storage: the copy of the storage, the unpacked archive, and the logs.
        gpus: whole GPUs.
        reason: the calculation of the memory.
    """

    cpu: int
    memory: int
    disk: int
    gpus: int
    reason: str

    def as_kubernetes(self) -> dict[str, dict[str, str]]:
        """Return requests and limits, which are the same.

        Kubernetes kills a pod that uses more memory than it requested when the node runs short, and ``threads: auto``
        divides the cores of the limit.
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
    """Return the resources that a pod of this archive needs.

    Args:
        facts: the archive.
        gpus: whole GPUs; None for one if it was checked with a GPU, otherwise none.
    """
    # All workers load at once, and each may need more memory then than later.
    loading = max(0, facts.peak - facts.private - facts.shared)
    workers = facts.private + facts.shared + (facts.workers - 1) * facts.additional + facts.workers * loading
    memory = _rounded(FRONTEND_BYTES + MARGIN * workers)
    return Resources(
        cpu=facts.workers * facts.threads,
        memory=memory,
        disk=_rounded(2 * facts.unpacked + LOG_BYTES),
        gpus=int(facts.gpu) if gpus is None else gpus,
        reason=(
            f"{FRONTEND_BYTES // MEBI} MiB for TorchServe's frontend + {MARGIN} × {workers / MEBI:.0f} MiB measured "
            f"for {facts.workers} worker{'s' * (facts.workers > 1)}, rounded up to {STEP // MEBI} MiB"
        ),
    )


def _rounded(size: float) -> int:
    return STEP * math.ceil(size / STEP)
