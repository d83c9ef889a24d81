"""What goes out: one reply for each request, handed to a sink in any order.

The loop gives replies to a :class:`Sink`; the adapter's sink writes them into TorchServe's context, a
test's sink keeps them in a list. Bodies are ready bytes: nothing after the loop serialises anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

JSON = "application/json"

_NOT_IN_A_NAME = re.compile(r"[^0-9A-Za-z!#$%&'*+.^_`|~-]")
"""What a header's name cannot hold (RFC 9110, 5.6.2): Netty refuses it and TorchServe's worker dies."""
_SERVERS_OWN = frozenset({"content-type", "content-length", "transfer-encoding", "connection", "ts_stream_next"})
"""Headers that frame the answer: the server sets them, and a handler's would break the answer or replace its type."""


@dataclass(slots=True)
class Reply:
    """The answer to one request: status, reason phrase, headers and ready bytes."""

    body: bytes
    status: int = 200
    phrase: str = "OK"
    content_type: str = JSON
    headers: dict[str, str] = field(default_factory=dict)


class Sink(Protocol):
    """Takes the replies of a batch. One call a request today; several for a stream later."""

    def send(self, index: int, reply: Reply) -> None:
        """Take the reply of the request at ``index``."""


class ListSink:
    """A sink that keeps the replies in the order of the requests."""

    def __init__(self, count: int) -> None:
        self._replies: list[Reply | None] = [None] * count

    def send(self, index: int, reply: Reply) -> None:
        """Keep ``reply`` as the answer of request ``index``."""
        self._replies[index] = reply

    @property
    def replies(self) -> list[Reply]:
        """All replies, in order.

        Raises:
            RuntimeError: when a request has had no reply; the loop never lets that happen.
        """
        missing = [index for index, reply in enumerate(self._replies) if reply is None]
        if missing:
            raise RuntimeError(f"no reply for the requests at {missing}")
        return [reply for reply in self._replies if reply is not None]


def sendable_headers(reply: Reply) -> dict[str, str]:
    """The reply's headers as any server takes them: valid names, values in ASCII, none of those that frame it."""
    named = ((_sendable_name(str(name)), value) for name, value in reply.headers.items())
    return {name: _ascii(value) for name, value in named if name}


@lru_cache(maxsize=256)
def _sendable_name(name: str) -> str:
    """A header's name as any server takes it, "" for one that is not sent; a handler has the same few each time."""
    name = _NOT_IN_A_NAME.sub("-", name)
    return "" if name.lower() in _SERVERS_OWN else name


def sendable_type(reply: Reply) -> str:
    """The reply's content type, likewise."""
    return _ascii(reply.content_type) or JSON


def _ascii(value: Any) -> str:
    """Text that may stand in a header: printable ASCII, no line breaks (Netty refuses them and the worker dies)."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(character if " " <= character <= "~" else "?" for character in text)
