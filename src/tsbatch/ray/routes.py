"""The HTTP routes of a replica: TorchServe's own, KServe v1, and the Open Inference Protocol (v2)."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from tsbatch._version import __version__
from tsbatch.errors import PayloadTooLarge, ReplyError
from tsbatch.protocol.encoding import dumps, encode_error
from tsbatch.protocol.reply import JSON, Reply, sendable_headers, sendable_type
from tsbatch.protocol.request import Headers, Kind, Request
from tsbatch.ray.batches import Batches
from tsbatch.ray.http_requests import deadline_of, request_from

Endpoint = Callable[[HttpRequest], Awaitable[Response]]

GET, POST = ["GET"], ["POST"]
BOTH = [*GET, *POST]
EXCEPTIONS: Mapping[int, str] = {404: "ResourceNotFoundException", 405: "MethodNotAllowedException"}
"""TorchServe's names for errors that do not come from a handler."""
STATES = {"RUNNING": "READY", "STOPPING": "UNLOADING"}
"""TorchServe's words for Ray's states of a replica; any other state means that the replica is still starting."""


def build(batches: Batches, close: Callable[[], None]) -> Starlette:
    """Build the HTTP application of a replica.

    Args:
        batches: answers the requests.
        close: called when the replica stops.
    """
    model = Model(batches)
    name, version = batches.handler.identity.name, batches.handler.identity.version
    predict, explain = model.inference("predict"), model.inference("explain")
    metadata = {"name": name, "versions": [version], "platform": "pytorch_tsbatch", "inputs": [], "outputs": []}
    constant = model.constant(metadata)
    ready = model.state(lambda ready: {"name": name, "ready": ready}, failed=503)
    of_model = [
        ("/predictions/{name}", BOTH, predict),
        ("/predictions/{name}/{version}", BOTH, predict),
        ("/predictions/{name}/{version}/{rest:path}", BOTH, predict),
        ("/explanations/{name}", BOTH, explain),
        ("/explanations/{name}/{version}", BOTH, explain),
        ("/v1/models/{name}:predict", POST, predict),
        ("/v1/models/{name}:explain", POST, explain),
        ("/v2/models/{name}/infer", POST, predict),
        ("/v2/models/{name}/versions/{version}/infer", POST, predict),
        ("/models/{name}", GET, model.description),
        ("/models/{name}/{version}", GET, model.description),
        ("/v1/models/{name}", GET, model.state(lambda ready: {"name": name, "ready": ready}, failed=200)),
        ("/v2/models/{name}", GET, constant),
        ("/v2/models/{name}/versions/{version}", GET, constant),
        ("/v2/models/{name}/ready", GET, ready),
        ("/v2/models/{name}/versions/{version}/ready", GET, ready),
    ]
    health = model.state(lambda ready: {"live": True, "ready": ready}, failed=503)
    server = {"name": "tsbatch on Ray Serve", "version": __version__, "extensions": []}
    others = [
        ("/ping", GET, model.state(lambda ready: {"status": "Healthy" if ready else "Unhealthy"}, failed=500)),
        ("/models", GET, model.constant({"models": [{"modelName": name}]})),
        ("/v1/models", GET, model.constant({"models": [name]})),
        ("/v2", GET, model.constant(server)),
        ("/v2/health/live", GET, health),
        ("/v2/health/ready", GET, health),
    ]

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        close()

    return Starlette(
        routes=[Route(path, model.only(endpoint), methods=methods) for path, methods, endpoint in of_model]
        + [Route(path, endpoint, methods=methods) for path, methods, endpoint in others],
        exception_handlers={HTTPException: _refused},
        lifespan=lifespan,
    )


class Model:
    """Creates the endpoints of one replica's model, which is always loaded and warm when a request arrives."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._identity = batches.handler.identity

    def constant(self, body: Mapping[str, Any]) -> Endpoint:
        """Create an endpoint that always gives the same answer."""
        return self.state(lambda _: body, failed=200)

    def state(self, body: Callable[[bool], Mapping[str, Any]], *, failed: int) -> Endpoint:
        """Create an endpoint that reports whether the replica is ready.

        Args:
            body: creates the answer's body.
            failed: the status if it is not ready.
        """

        async def answer(_: HttpRequest) -> Response:
            ready = not self._batches.overdue
            return _json(body(ready), 200 if ready else failed)

        return answer

    def inference(self, kind: Kind) -> Endpoint:
        """Create an endpoint whose requests go through the handler."""

        async def answer(http: HttpRequest) -> Response:
            headers = dict(http.headers)
            if rest := http.path_params.get("rest"):
                headers["url_path"] = rest
            try:
                request = request_from(headers, await self._body(http), kind)
            except ReplyError as error:
                bare = Request(fields={}, headers=Headers(headers))
                return _response(encode_error(error, bare, self._identity))
            return _response(await self._batches.answer(request, deadline_of(request.headers, time.time())))

        return answer

    async def _body(self, http: HttpRequest) -> bytes:
        limit = self._batches.settings.request_bytes
        body = await http.body()
        if len(body) > limit:
            raise PayloadTooLarge(
                f"the body has {len(body):,} bytes; the limit is {limit:,}", expected="a smaller body"
            )
        return body

    async def description(self, http: HttpRequest) -> Response:
        """Answer ``GET /models/NAME`` in the form of TorchServe's management API, so that its clients can read it."""
        settings = self._batches.settings
        replicas = settings.replicas if isinstance(settings.replicas, tuple) else (settings.replicas,) * 2
        described = {
            "modelName": self._identity.name,
            "modelVersion": self._identity.version,
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
            # The queues of Ray's proxies are unknown here, and requests in this replica have left them.
            "jobQueueStatus": {"remainingCapacity": settings.queue_size, "pendingRequests": 0},
        }
        if http.query_params.get("customized", "").lower() == "true":
            request = Request(fields={}, headers=Headers(dict(http.headers)), kind="describe")
            described["customizedMetadata"] = json.loads((await self._batches.answer(request)).body)
        return _json([described])

    def only(self, endpoint: Endpoint) -> Endpoint:
        """Restrict an endpoint to requests that name this model and this version."""
        name, version = self._identity.name, self._identity.version

        async def checked(http: HttpRequest) -> Response:
            asked = http.path_params
            if asked["name"] != name:
                return _failure(404, "ModelNotFoundException", f"Model not found: {asked['name']}")
            if asked.get("version", version) != version:
                text = f"Model version: {asked['version']} does not exist for model: {name}"
                return _failure(404, "ModelVersionNotFoundException", text)
            return await endpoint(http)

        return checked


async def _replicas() -> list[dict[str, Any]]:
    """Return the deployment's replicas, as the controller sees them."""
    from ray import serve

    here = serve.get_replica_context()
    status = await asyncio.to_thread(serve.status)
    counts = status.applications[here.app_name].deployments[here.deployment].replica_states
    states = [
        STATES.get(str(getattr(state, "value", state)), "STARTING")
        for state, count in counts.items()
        for _ in range(count)
    ]
    return [{"id": str(number), "status": state} for number, state in enumerate(states)]


async def _refused(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = (
        "Requested resource is not found, please refer to API document." if error.status_code == 404 else error.detail
    )
    return _failure(error.status_code, EXCEPTIONS.get(error.status_code, "InternalServerException"), text)


def _failure(status: int, kind: str, message: str) -> Response:
    return _json({"code": status, "type": kind, "message": message}, status)


def _json(value: Any, status: int = 200) -> Response:
    return Response(dumps(value), status, media_type=JSON)


def _response(reply: Reply) -> Response:
    headers = {**sendable_headers(reply), "content-type": sendable_type(reply)}
    return Response(reply.body, reply.status, headers)
