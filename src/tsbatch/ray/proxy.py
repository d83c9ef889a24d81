"""For Ray's HTTP proxies: a request that was lost with its replica is answered, in words and with a status to retry.

Where a replica ends under a request, because its node is gone or its process was killed, Ray's proxy answers nothing
and its HTTP server says 500, which no client may take for retryable. Ray lets an operator add middleware to its proxies
by the environment variable :data:`VARIABLE`; ``tsbatch ray deploy`` sets it where it is the one that starts Serve.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from tsbatch.ray.deployment_options import RETRY_AFTER

VARIABLE: Final = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK: Final = "tsbatch.ray.proxy:middlewares"
_OURS: Final = re.compile(r"/(?:predictions|explanations|v1/models|v2/models|models)/")
"""Other applications behind the same proxy keep their own answers."""

LOST: Final = json.dumps(
    {
        "code": 503,
        "type": "ServiceUnavailableException",
        "message": "the replica that worked on this request has ended; nothing is known of its answer",
    }
).encode()
"""The body of the answer, as TorchServe words a failure that is no handler's."""
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]


def middlewares() -> list[Any]:
    """What Ray's proxies call to be told of further middleware."""
    from starlette.middleware import Middleware

    return [Middleware(AnswersForTheLost)]


class AnswersForTheLost:
    """Answers 503 with ``Retry-After`` where the application behind it ended without a word."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI protocol."""
        if scope["type"] != "http" or not _OURS.search(scope["path"]):
            await self._app(scope, receive, send)
            return
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = begun or message["type"] == "http.response.start"
            await send(message)

        await self._app(scope, receive, noting)
        if not begun:
            await _answer(scope, send)


async def _answer(scope: Message, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", str(RETRY_AFTER).encode())]
    headers += [(name, value) for name, value in scope["headers"] if name == b"x-request-id"]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": LOST})
