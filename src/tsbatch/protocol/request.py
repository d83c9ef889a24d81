"""Requests and the items they carry.

A request is one HTTP or gRPC call. The adapter (``worker/adapter.py``) or a caller fills in the upper half of
:class:`Request`; decoding (``protocol/payload.py``) fills in the lower half. Nothing here depends on TorchServe.
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
    """HTTP headers with case-insensitive lookup (RFC 9110, 5.1)."""

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
        """Return the header or ``default``; faster than Mapping's own method, which raises for missing headers."""
        return self._values.get(name.lower(), default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        # Names only: values may contain tokens.
        return f"Headers({sorted(self._values)})"


@dataclass(slots=True, eq=False)
class Request:
    """One HTTP or gRPC call of the batch.

    Attributes:
        fields: the content by field name; a raw body is the field ``body``. Values are ``bytes``, ``bytearray``,
            ``str`` or already parsed JSON.
        headers: the call's headers; empty for gRPC.
        content_types: content type of each field that has one.
        index: position in the batch.
        id: the request id of the server.
        arrival: when the client or proxy sent the request, in seconds since the epoch (``X-Request-Start``).
        kind: predict, explain or describe.
        protocol: the protocol of the body, filled in by decoding; determines the shape of the reply.
        single: True if the body held one bare item, so that the reply is bare too.
        parameters: the parameters of the request, filled in by decoding.
        client_id: the ``id`` of an Open Inference body.
        ticket: for adapters (trace context, deadline); the loop never reads it.
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
        """Create a request whose body is ``value``, as a client would send it as JSON; for scripts and tests."""
        return cls(fields={"body": value}, content_types={"body": "application/json"}, **fields)


@dataclass(slots=True, eq=False)
class Item:
    """One input of the model.

    Attributes:
        value: the decoded value that the client sent.
        parameters: the parameters of the request, overridden by those of the item; an instance of the handler's
            ``parameters_class`` if it declares one.
        request: the request that the item belongs to.
        position: its index among the items of the request.
        state: for the handler: whatever one stage passes to a later one for this item.
    """

    value: Any
    parameters: Any
    request: Request
    position: int = 0
    state: Any = None
