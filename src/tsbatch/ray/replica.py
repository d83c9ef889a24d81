"""The deployment: what Ray Serve runs in each replica."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from typing import Any

import orjson
from ray import serve
from starlette.applications import Starlette

from tsbatch.errors import LoadError, TsbatchError
from tsbatch.protocol.request import Request
from tsbatch.ray.archive_cache import Source
from tsbatch.ray.batches import Batches, Ticket
from tsbatch.ray.deployment_options import RaySettings
from tsbatch.ray.metrics import RayMetrics
from tsbatch.ray.replica_loading import load
from tsbatch.ray.routes import build

logger = logging.getLogger("tsbatch")


class Refused(TsbatchError):
    """A call through a deployment handle was answered with an error."""


class Replica:
    """One replica: a loaded handler, its thread, and the addresses it answers at.

    Ray sends nothing here before the constructor is done; so whoever is answered is answered by a warm model.

    Args:
        source: the archive.
        settings: how it runs.
    """

    def __init__(self, source: Source, settings: RaySettings) -> None:
        # The handler lives in one thread from its first line on, as in a worker: torch's settings belong to threads.
        thread = ThreadPoolExecutor(1, thread_name_prefix="tsbatch")
        gpu_id = 0 if settings.gpus else None  # the only one that Ray lets this process see
        loading = thread.submit(load, source, settings, gpu_id)
        try:
            handler, self._release = loading.result(settings.startup_timeout)
        except NotInTime:
            raise LoadError(
                f"{source.file}: not loaded in startupTimeout, {settings.startup_timeout:g} s; raise it in"
                " model-config.yaml, or find what takes so long with tsbatch check"
            ) from None
        self._batches = Batches(handler, thread, settings, RayMetrics(settings.name))
        self._batches.gather = _gathered_by_ray(self._batches)

    def __serve_build_asgi_app__(self) -> Starlette:
        """Called by Ray once the constructor is done."""
        return build(self._batches, self._close)

    def check_health(self) -> None:
        """Asked by Ray every few seconds; a replica that goes on raising is replaced."""
        if self._batches.overdue:
            raise RuntimeError("a batch took longer than responseTimeout and still holds the handler")

    async def predict(self, value: Any, parameters: dict[str, Any] | None = None) -> Any:
        """For other deployments: ``await handle.predict.remote(value)``.

        Args:
            value: what a client would send as ``inputs``.
            parameters: likewise.

        Returns:
            What a client would get, parsed; bytes where it is no JSON.

        Raises:
            Refused: the answer is an error; the text is its body.
        """
        body = {"inputs": value, **({"parameters": parameters} if parameters else {})}
        reply = await self._batches.answer(Request.of(body))
        if reply.status != 200:
            raise Refused(f"{reply.status}: {reply.body.decode('utf-8', 'replace')}")
        return orjson.loads(reply.body) if reply.content_type == "application/json" else reply.body

    def _close(self) -> None:
        """What ``close`` is for: called once all requests are answered."""
        handler, thread = self._batches.handler, self._batches.thread
        try:
            # In the handler's own thread, unless that is the one that hangs.
            handler.close() if self._batches.overdue else thread.submit(handler.close).result()
        except Exception:
            logger.exception("closing failed")
        self._release()


def _gathered_by_ray(batches: Batches) -> Callable[[Ticket], Any]:
    async def gather(tickets: list[Ticket]) -> list[None]:
        return list(await batches.line_up(tickets))

    gather.__name__ = batches.settings.name  # what Ray's own batching metrics are labelled with
    decorated: Callable[[Ticket], Any] = serve.batch(
        max_batch_size=batches.settings.batch_size, batch_wait_timeout_s=batches.settings.batch_delay
    )(gather)
    return decorated


ReplicaApp = serve.ingress()(Replica)
"""The class that is deployed: :class:`Replica` behind HTTP."""
