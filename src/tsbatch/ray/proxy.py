"""Middleware for Ray's HTTP proxies: answer requests that were lost with their replica so that clients can retry.

If a replica dies during a request, because its node is gone or its process was killed, Ray's proxy does not answer and
its HTTP server sends a 500, which clients must not retry. The environment variable :data:`VARIABLE` adds middleware to
Ray's proxies; ``tsbatch ray deploy`` sets it if it starts Serve.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from tsbatch.ray.deployment_options import RETRY_AFTER

VARIABLE: Final = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK: Final = "tsbatch.ray.proxy:middlewares"
_ROUTES: Final = re.compile(r"/(?:predictions|explanations|v1/models|v2/models|models)/")
"""The middleware does not change the answers of other applications behind the same proxy."""

LOST_BODY: Final = json.dumps(
    {
        "code": 503,
        "type": "ServiceUnavailableException",
        "message": "the replica that was processing this request has ended; its answer is lost",
    }
).encode()
"""The body of the answer, in the form of TorchServe's own errors."""
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]


def middlewares() -> list[Any]:
    """Return the middleware; called by Ray's proxies."""
    from starlette.middleware import Middleware

    return [Middleware(LostRequestMiddleware)]


class LostRequestMiddleware:
    """Answers 503 with ``Retry-After`` if the application behind it ends without an answer."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handle a request by the ASGI protocol."""
        if scope["type"] != "http" or not _ROUTES.search(scope["path"]):
            await self._app(scope, receive, send)
            return
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        await self._app(scope, receive, send_and_note)
        if not started:
            await _answer(scope, send)


async def _answer(scope: Message, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", str(RETRY_AFTER).encode())]
    headers += [(name, value) for name, value in scope["headers"] if name == b"x-request-id"]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": LOST_BODY})
