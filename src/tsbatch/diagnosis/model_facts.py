"""What is known of a model beside its requests: its settings, and what its machine has room for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Settings and room; None is unknown.

    Attributes:
        model, version: which model.
        workers: how many it has.
        batch_size, max_batch_delay: as TorchServe uses them; the delay in ms.
        queue_size: requests that may wait (jobQueueSize).
        cores: that the server may use.
        worker_memory: bytes that one more worker takes for itself.
        free_memory: bytes that are free on its machine.
        worker_gpu_memory: share of a GPU's memory that one worker holds, 0 to 1.
        gpus: that its machine has.
        worker_cores: cores that one worker keeps busy while it is in its handler.
        threads: torch threads of one worker.
        engine: ``ray`` where Ray Serve answers; TorchServe otherwise.
    """

    model: str = ""
    version: str = ""
    workers: int | None = None
    batch_size: int | None = None
    max_batch_delay: int | None = None
    queue_size: int | None = None
    cores: int | None = None
    worker_memory: int | None = None
    free_memory: int | None = None
    worker_gpu_memory: float | None = None
    gpus: int | None = None
    worker_cores: float | None = None
    threads: int | None = None
    engine: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As one JSON object."""
        return asdict(self)

    @classmethod
    def of_described(cls, model: Mapping[str, Any], **more: Any) -> Known:
        """From what ``GET /models/NAME`` says of one version.

        Args:
            model: the answer's entry.
            more: what else is known.
        """
        queue = model.get("jobQueueStatus") or {}
        size = sum(queue[key] for key in ("remainingCapacity", "pendingRequests") if key in queue)
        # -10000 and the like come from registering with a JSON body (RegisterModelRequest.java).
        delay = model.get("maxBatchDelay")
        return cls(
            model=model.get("modelName", ""),
            version=model.get("modelVersion", ""),
            workers=len(model.get("workers") or ()) or model.get("minWorkers"),
            batch_size=model.get("batchSize"),
            max_batch_delay=max(0, delay) if delay is not None else None,
            queue_size=size or None,
            engine=model.get("engine"),
            **more,
        )
