"""What ``GET /models/NAME`` tells: TorchServe's own shape, so that whoever reads it there reads it here."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tsbatch.protocol.reply import Reply
from tsbatch.ray.batches import Batches

STATES = {"RUNNING": "READY", "STOPPING": "UNLOADING"}
"""Ray's states of a replica in TorchServe's words; any other is a replica that is not there yet."""


async def describe(batches: Batches, own: Reply | None) -> dict[str, Any]:
    """The model as this replica knows it.

    Args:
        batches: of this replica.
        own: what the handler says of itself, where somebody asked.
    """
    settings, identity = batches.settings, batches.handler.identity
    replicas = settings.replicas if isinstance(settings.replicas, tuple) else (settings.replicas, settings.replicas)
    described = {
        "modelName": identity.name,
        "modelVersion": identity.version,
        "runtime": "python",
        "engine": "ray",
        "minWorkers": replicas[0],
        "maxWorkers": replicas[1],
        "batchSize": settings.batch_size,
        "maxBatchDelay": round(settings.batch_delay * 1000),
        "responseTimeout": round(settings.response_timeout),
        "startupTimeout": round(settings.startup_timeout),
        "loadedAtStartup": True,
        "workers": await _replicas(),
        # What waits at Ray's proxies is not known here; what waits here has left their queue.
        "jobQueueStatus": {"remainingCapacity": settings.queue_size, "pendingRequests": 0},
    }
    if own is not None:
        described["customizedMetadata"] = json.loads(own.body)
    return described


async def _replicas() -> list[dict[str, Any]]:
    """The deployment's replicas, as the controller sees them."""
    from ray import serve

    here = serve.get_replica_context()
    status = await asyncio.to_thread(serve.status)
    found = status.applications[here.app_name].deployments[here.deployment].replica_states
    states = [
        STATES.get(str(getattr(state, "value", state)), "STARTING") for state, n in found.items() for _ in range(n)
    ]
    return [{"id": str(number), "status": state} for number, state in enumerate(states)]
