"""The call of a client, and the request that TorchServe's frontend makes of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from tsbatch.emulation.frames import Part, WireRequest

_FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True)
class Call:
    """One POST request of a client.

    Attributes:
        body: the raw body. ``str`` and ``bytes`` are sent unchanged, any other value as JSON.
        content_type: its content type; None for text/plain, application/octet-stream or application/json, depending on
            the type of ``body``; empty for none.
        headers: additional HTTP headers.
        fields: a form instead of the body, by field name. ``str`` and ``bytes`` are plain fields, a pair
            ``(value, content type)`` is an uploaded file, any other value is uploaded JSON.
    """

    body: Any = b""
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, request: Any) -> Call:
        """Return ``request`` if it is a call; otherwise a call with this body."""
        return request if isinstance(request, Call) else cls(request)

    def to_wire(self, request_id: str, added: Mapping[str, str] | None = None) -> WireRequest:
        """Return the request as the frontend passes it to a worker (InferenceRequestHandler.parseRequest).

        Args:
            request_id: the id that the frontend assigns.
            added: headers that the frontend sets, overriding those of the client.

        Raises:
            ValueError: the body is a multipart form; use ``fields`` for that.
        """
        added = added or {}
        if self.fields is not None:
            # The frontend has parsed the form; nothing reads the boundary again.
            headers = {"Content-Type": "multipart/form-data; boundary=-", **self.headers, **added}
            return WireRequest(request_id, headers, [_form_part(name, value) for name, value in self.fields.items()])
        body, own_type = _body_of(self.body)
        content_type = own_type if self.content_type is None else self.content_type
        headers = {"Content-Type": content_type} if content_type else {}
        headers |= {"Content-Length": str(len(body)), **self.headers, **added}
        mime = content_type.split(";")[0]
        if mime.lower() == _FORM:
            pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
            return WireRequest(request_id, headers, [Part(name, value.encode()) for name, value in pairs])
        if mime.lower() == "multipart/form-data":
            raise ValueError("send a multipart form as Call(fields={name: value}), not as raw bytes")
        return WireRequest(request_id, headers, [Part("body", body, mime)])


def _body_of(value: Any) -> tuple[bytes, str]:
    if isinstance(value, str):
        return value.encode(), "text/plain"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value), "application/octet-stream"
    return json.dumps(value).encode(), "application/json"


def _form_part(name: str, value: Any) -> Part:
    if isinstance(value, tuple):
        return Part(name, _body_of(value[0])[0], value[1])
    data, content_type = _body_of(value)
    return Part(name, data, content_type if content_type == "application/json" else "")
