"""The addresses of a replica: TorchServe's own, KServe v1, and the Open Inference Protocol (v2)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
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
from tsbatch.ray.model_description import describe

READ = ["GET", "POST"]
EXCEPTIONS: Mapping[int, str] = {404: "ResourceNotFoundException", 405: "MethodNotAllowedException"}
"""What TorchServe calls an error that is no handler's."""


def build(batches: Batches, close: Callable[[], None]) -> Starlette:
    """The application of a replica.

    Args:
        batches: who answers.
        close: called when the replica ends.
    """
    model = Model(batches)
    predict, explain = model.answering("predict"), model.answering("explain")
    versioned = [
        ("/predictions/{name}", READ, predict),
        ("/predictions/{name}/{version}", READ, predict),
        ("/predictions/{name}/{version}/{rest:path}", READ, predict),
        ("/explanations/{name}", READ, explain),
        ("/explanations/{name}/{version}", READ, explain),
        ("/v1/models/{name}:predict", ["POST"], predict),
        ("/v1/models/{name}:explain", ["POST"], explain),
        ("/v2/models/{name}/infer", ["POST"], predict),
        ("/v2/models/{name}/versions/{version}/infer", ["POST"], predict),
        ("/models/{name}", ["GET"], model.described),
        ("/models/{name}/{version}", ["GET"], model.described),
        ("/v1/models/{name}", ["GET"], model.kserve_ready),
        ("/v2/models/{name}", ["GET"], model.metadata),
        ("/v2/models/{name}/versions/{version}", ["GET"], model.metadata),
        ("/v2/models/{name}/ready", ["GET"], model.ready),
        ("/v2/models/{name}/versions/{version}/ready", ["GET"], model.ready),
    ]
    plain = [
        ("/ping", ["GET"], model.ping),
        ("/models", ["GET"], model.listed),
        ("/v1/models", ["GET"], model.kserve_listed),
        ("/v2", ["GET"], model.server),
        ("/v2/health/live", ["GET"], model.live),
        ("/v2/health/ready", ["GET"], model.live),
    ]

    @asynccontextmanager
    async def until_the_end(_app: Starlette) -> AsyncIterator[None]:
        yield
        close()

    return Starlette(
        routes=[Route(path, _of_this_model(batches, call), methods=methods) for path, methods, call in versioned]
        + [Route(path, call, methods=methods) for path, methods, call in plain],
        exception_handlers={HTTPException: _refused},
        lifespan=until_the_end,
    )


class Model:
    """What the addresses answer: the model of one replica, which is loaded and warm whenever somebody can ask it."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._identity = batches.handler.identity

    def answering(self, kind: Kind) -> Callable[[HttpRequest], Any]:
        """An address whose requests go through the handler."""

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
                f"the body has {len(body):,} bytes, and at most {limit:,} are taken", expected="a smaller body"
            )
        return body

    async def described(self, http: HttpRequest) -> Response:
        """``GET /models/NAME``, in the shape that TorchServe's management API has."""
        own = None
        if http.query_params.get("customized", "").lower() == "true":
            asked = Request(fields={}, headers=Headers(dict(http.headers)), kind="describe")
            own = await self._batches.answer(asked)
        return _json([await describe(self._batches, own)])

    async def kserve_ready(self, _: HttpRequest) -> Response:
        """``GET /v1/models/NAME``: asked by KServe before it sends anything."""
        return _json({"name": self._identity.name, "ready": not self._batches.overdue})

    async def metadata(self, _: HttpRequest) -> Response:
        """``GET /v2/models/NAME``."""
        about = {"name": self._identity.name, "versions": [self._identity.version], "platform": "pytorch_tsbatch"}
        return _json({**about, "inputs": [], "outputs": []})

    async def ready(self, _: HttpRequest) -> Response:
        """``GET /v2/models/NAME/ready``."""
        about = {"name": self._identity.name, "ready": not self._batches.overdue}
        return _json(about, 503 if self._batches.overdue else 200)

    async def ping(self, _: HttpRequest) -> Response:
        """``GET /ping``."""
        healthy = not self._batches.overdue
        return _json({"status": "Healthy" if healthy else "Unhealthy"}, 200 if healthy else 500)

    async def listed(self, _: HttpRequest) -> Response:
        """``GET /models``: the one model of this application."""
        return _json({"models": [{"modelName": self._identity.name}]})

    async def kserve_listed(self, _: HttpRequest) -> Response:
        """``GET /v1/models``."""
        return _json({"models": [self._identity.name]})

    async def server(self, _: HttpRequest) -> Response:
        """``GET /v2``."""
        return _json({"name": "tsbatch on Ray Serve", "version": __version__, "extensions": []})

    async def live(self, _: HttpRequest) -> Response:
        """``GET /v2/health/live`` and ``ready``: a replica that answers has loaded its model and warmed it up."""
        return _json({"live": True, "ready": not self._batches.overdue}, 503 if self._batches.overdue else 200)


def _of_this_model(batches: Batches, call: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """``call``, for requests that name the model and version that is served here."""
    name, version = batches.handler.identity.name, batches.handler.identity.version

    async def checked(http: HttpRequest) -> Response:
        asked = http.path_params
        if asked["name"] != name:
            return _failure(404, "ModelNotFoundException", f"Model not found: {asked['name']}")
        if asked.get("version", version) != version:
            text = f"Model version: {asked['version']} does not exist for model: {name}"
            return _failure(404, "ModelVersionNotFoundException", text)
        response: Response = await call(http)
        return response

    return checked


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
