"""What comes in: one request of the batch, and the items it carries.

A request is one HTTP or gRPC call. The adapter (``torchserve.py``) or a caller fills the upper half of
:class:`Request`; decoding fills the lower half with what the body turned out to be (``payload.py``).
Nothing here knows TorchServe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar, overload

Protocol = Literal["plain", "kserve-v1", "open-inference"]
Kind = Literal["predict", "explain", "describe"]

T = TypeVar("T")

NO_PARAMETERS: Mapping[str, Any] = MappingProxyType({})


class Headers(Mapping[str, str]):
    """HTTP headers, looked up without regard to case (RFC 9110, 5.1)."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {name.lower(): value for name, value in values.items()} if values else {}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    @overload
    def get(self, name: str, /) -> str | None: ...

    @overload
    def get(self, name: str, default: str | T, /) -> str | T: ...

    def get(self, name: str, default: Any = None, /) -> Any:
        """The header, or ``default``; Mapping's own raises and catches, and most that are asked for are not there."""
        return self._values.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        # Names only: values may hold tokens.
        return f"Headers({sorted(self._values)})"


@dataclass(slots=True, eq=False)
class Request:
    """One HTTP or gRPC call of the batch.

    Attributes:
        fields: what was sent, by field name; a raw body is the field ``body``. Values are ``bytes``,
            ``bytearray``, ``str`` or already parsed JSON.
        headers: the call's headers; empty for gRPC.
        content_types: content type of each field, where the client gave one.
        index: position in the batch.
        id: the server's id of the request.
        arrival: when the client or proxy sent it, in seconds since the epoch (``X-Request-Start``).
        kind: predict, explain or describe.
        protocol: the protocol the body spoke, filled in by decoding; decides the answer's shape.
        single: True when the body held one bare item, so that the answer is bare too.
        parameters: the request's parameters, filled in by decoding.
        client_id: the ``id`` of an Open Inference body.
        ticket: room for adapters (trace context, deadline); never read by the loop.
    """

    fields: Mapping[str, Any]
    headers: Headers = field(default_factory=Headers)
    content_types: Mapping[str, str] = field(default_factory=dict)
    index: int = 0
    id: str = ""
    arrival: float | None = None
    kind: Kind = "predict"
    protocol: Protocol = "plain"
    single: bool = True
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)
    client_id: str | None = None
    ticket: Any = None

    @classmethod
    def of(cls, value: Any, **fields: Any) -> Request:
        """A request whose body is ``value``, as a client would send it as JSON; for scripts and tests."""
        return cls(fields={"body": value}, content_types={"body": "application/json"}, **fields)


@dataclass(slots=True, eq=False)
class Item:
    """One input of the model.

    Attributes:
        value: what the client sent for this item, decoded.
        parameters: the request's parameters, overlaid with the item's own; an instance of the handler's
            ``parameters_class`` where it declares one.
        request: the request it came with.
        position: its place among the request's items.
        state: room for the handler: what one stage hands to a later one for this item.
    """

    value: Any
    parameters: Any
    request: Request
    position: int = 0
    state: Any = None
