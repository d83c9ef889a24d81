"""What goes out: one reply for each request, handed to a sink in any order.

The loop gives replies to a :class:`Sink`; the adapter's sink writes them into TorchServe's context, a
test's sink keeps them in a list. Bodies are ready bytes: nothing after the loop serialises anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

JSON = "application/json"


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
