"""The deployment: the class that Ray Serve runs in each replica, and its metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from typing import Any

import orjson
from ray import serve
from ray.serve.metrics import Counter, Gauge
from starlette.applications import Starlette

from tsbatch.errors import LoadError, TsbatchError
from tsbatch.protocol.request import Request
from tsbatch.ray.archive_cache import Source
from tsbatch.ray.batches import Batches, QueuedRequest
from tsbatch.ray.deployment_options import RaySettings
from tsbatch.ray.replica_loading import load
from tsbatch.ray.routes import build
from tsbatch.worker.telemetry import COUNTERS, GAUGES

logger = logging.getLogger("tsbatch")


class RequestFailed(TsbatchError):
    """The answer to a call through a deployment handle is an error."""


class RayMetrics:
    """Exports the batch metrics through Ray's own endpoint, under their names on TorchServe; one per replica.

    Ray's Prometheus endpoint prefixes each name with ``ray_`` and converts it to lower case, because OpenTelemetry does
    (opentelemetry/sdk/metrics/_internal/instrument.py), and adds the labels application, deployment and replica. Level
    is always Model, as on TorchServe. Sums are counters, so means over any interval are exact.

    Args:
        model: the model's name.
    """

    knows_ours = True

    def __init__(self, model: str) -> None:
        tags: Any = ("ModelName", "Level")  # Ray declares a tuple of one name, but accepts any number
        self._counters: dict[str, Any] = {}
        for name, meaning in COUNTERS.items():
            tag_keys = (*tags, "Cause") if name == "FailedRequests" else tags
            self._counters[name] = Counter(name, description=meaning, tag_keys=tag_keys)
        self._gauges: dict[str, Any] = {
            name: Gauge(name, description=meaning, tag_keys=tags) for name, meaning in GAUGES.items()
        }
        for metric in (*self._counters.values(), *self._gauges.values()):
            # A new dictionary for each: Ray adds its own tags to it.
            metric.set_default_tags({"ModelName": model, "Level": "Model"})

    def count(self, name: str, value: float, dimensions: Mapping[str, str]) -> None:
        """Add ``value`` to the counter ``name``."""
        if value > 0:  # Ray rejects 0
            self._counters[name].inc(value, tags=dict(dimensions))

    def gauge(self, name: str, value: float, unit: str) -> None:  # noqa: ARG002 - the name implies the unit
        """Set the gauge ``name``."""
        self._gauges[name].set(value)


class Replica:
    """One replica: a loaded handler, its thread, and the routes it answers.

    Ray sends no requests before the constructor returns, so the model is warm when the first one arrives.

    Args:
        source: the archive.
        settings: how it runs.
    """

    def __init__(self, source: Source, settings: RaySettings) -> None:
        # The handler lives in one thread from its first line on, as in a worker: torch's settings belong to threads.
        thread = ThreadPoolExecutor(1, thread_name_prefix="tsbatch")
        gpu_id = 0 if settings.gpus else None  # the only GPU that Ray makes visible to this process
        loading = thread.submit(load, source, settings, gpu_id)
        try:
            handler, self._release = loading.result(settings.startup_timeout)
        except NotInTime:
            raise LoadError(
                f"{source.file}: not loaded within startupTimeout ({settings.startup_timeout:g} s); increase it in"
                " model-config.yaml, or find out what takes so long with tsbatch check"
            ) from None
        self._batches = Batches(handler, thread, settings, RayMetrics(settings.name))
        self._batches.gather = _gathered_by_ray(self._batches)

    def __serve_build_asgi_app__(self) -> Starlette:
        """Build the HTTP application; Ray calls it after the constructor."""
        return build(self._batches, self._close)

    def check_health(self) -> None:
        """Raise if the replica hangs; Ray calls this every few seconds and replaces a replica that keeps raising."""
        if self._batches.overdue:
            raise RuntimeError("a batch took longer than responseTimeout and still occupies the handler")

    async def predict(self, value: Any, parameters: dict[str, Any] | None = None) -> Any:
        """Answer another deployment: ``await handle.predict.remote(value)``.

        Args:
            value: what a client would send as ``inputs``.
            parameters: what a client would send as ``parameters``.

        Returns:
            The parsed answer, or bytes if it is not JSON.

        Raises:
            RequestFailed: the answer is an error; the message contains its body.
        """
        body = {"inputs": value, **({"parameters": parameters} if parameters else {})}
        reply = await self._batches.answer(Request.of(body))
        if reply.status != 200:
            raise RequestFailed(f"{reply.status}: {reply.body.decode('utf-8', 'replace')}")
        return orjson.loads(reply.body) if reply.content_type == "application/json" else reply.body

    def _close(self) -> None:
        """Close the handler; called when all requests have been answered."""
        handler, thread = self._batches.handler, self._batches.thread
        try:
            # In the handler's own thread, unless that thread hangs.
            handler.close() if self._batches.overdue else thread.submit(handler.close).result()
        except Exception:
            logger.exception("closing failed")
        self._release()


def _gathered_by_ray(batches: Batches) -> Callable[[QueuedRequest], Any]:
    async def gather(tickets: list[QueuedRequest]) -> list[None]:
        return list(await batches.enqueue(tickets))

    gather.__name__ = batches.settings.name  # the label of Ray's own batching metrics
    decorated: Callable[[QueuedRequest], Any] = serve.batch(
        max_batch_size=batches.settings.batch_size, batch_wait_timeout_s=batches.settings.batch_delay
    )(gather)
    return decorated


ReplicaApp = serve.ingress()(Replica)
"""The deployed class: :class:`Replica` behind HTTP."""
