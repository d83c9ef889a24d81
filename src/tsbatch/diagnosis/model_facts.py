"""Facts about a model in addition to its requests: its settings and the capacity of its machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Settings and capacity; None if unknown.

    Attributes:
        model, version: the model.
        workers: number of its workers.
        batch_size, max_batch_delay: the effective settings; the delay in ms.
        queue_size: maximum number of queued requests (jobQueueSize).
        cores: cores available to the server.
        worker_memory: private memory of one more worker, bytes.
        free_memory: free memory of its machine, bytes.
        worker_gpu_memory: share of a GPU's memory that one worker uses, 0 to 1.
        gpus: number of GPUs of its machine.
        worker_cores: cores that one worker uses while it is in its handler.
        threads: torch threads of one worker.
        engine: ``ray`` for Ray Serve, otherwise TorchServe.
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

    @property
    def name(self) -> str:
        """Name and version of the model for people."""
        return f"{self.model} {self.version}".strip() or "the model"

    @classmethod
    def of_described(cls, model: Mapping[str, Any], **more: Any) -> Known:
        """Read one entry of the answer to ``GET /models/NAME``.

        Args:
            model: the entry.
            more: further facts.
        """
        queue = model.get("jobQueueStatus") or {}
        size = sum(queue[key] for key in ("remainingCapacity", "pendingRequests") if key in queue)
        # Registering with a JSON body gives values like -10000 (RegisterModelRequest.java).
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
