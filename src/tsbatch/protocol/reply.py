"""Replies, one per request, passed to a sink in any order.

The loop passes replies to a :class:`Sink`; the adapter's sink writes them into TorchServe's context, the sink of a test
keeps them in a list. Bodies are ready bytes: nothing is serialised after the loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

JSON = "application/json"

_NOT_IN_A_NAME = re.compile(r"[^0-9A-Za-z!#$%&'*+.^_`|~-]")
"""Characters that a header name cannot contain (RFC 9110, 5.6.2): Netty rejects them, and TorchServe's worker dies."""
_SERVERS_OWN = frozenset({"content-type", "content-length", "transfer-encoding", "connection", "ts_stream_next"})
"""Headers that frame the response. The server sets them; one from a handler would break the response or its type."""


@dataclass(slots=True)
class Reply:
    """The reply to one request: status, reason phrase, headers and ready bytes."""

    body: bytes
    status: int = 200
    phrase: str = "OK"
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """Receives the replies of a batch: one call per request, or several for a stream in the future."""

    def send(self, index: int, reply: Reply) -> None:
        """Accept the reply to the request at ``index``."""


class ListSink:
    """A sink that keeps the replies in the order of the requests."""

    def __init__(self, count: int) -> None:
        self._replies: list[Reply | None] = [None] * count

    def send(self, index: int, reply: Reply) -> None:
        """Store ``reply`` as the reply to request ``index``."""
        self._replies[index] = reply

    @property
    def replies(self) -> list[Reply]:
        """All replies, in order.

        Raises:
            RuntimeError: a request has no reply; the loop never lets that happen.
        """
        missing = [index for index, reply in enumerate(self._replies) if reply is None]
        if missing:
            raise RuntimeError(f"no reply for the requests at {missing}")
        return [reply for reply in self._replies if reply is not None]


def sendable_headers(reply: Reply) -> dict[str, str]:
    """Return the headers that any server accepts: valid names, ASCII values, none that frame the response."""
    named = ((_sendable_name(str(name)), value) for name, value in reply.headers.items())
    return {name: _ascii(value) for name, value in named if name}


@lru_cache(maxsize=256)
def _sendable_name(name: str) -> str:
    """Return a valid header name, or "" for a header that is not sent; cached, since a handler repeats a few names."""
    name = _NOT_IN_A_NAME.sub("-", name)
    return "" if name.lower() in _SERVERS_OWN else name


def sendable_type(reply: Reply) -> str:
    """Return the content type, as safe as the headers."""
    return _ascii(reply.content_type) or JSON


def _ascii(value: Any) -> str:
    """Return valid header text: printable ASCII, no line breaks (Netty rejects them, and the worker dies)."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if " " <= character <= "~" else "?" for character in text)
