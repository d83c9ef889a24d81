"""What a client posts, and the request TorchServe's frontend makes of it."""

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
    """What one client posts.

    Attributes:
        body: the raw body. ``str`` and ``bytes`` go as they are, any other value as JSON.
        content_type: its content type; None for text/plain, application/octet-stream or application/json by the type of
            ``body``, empty for none.
        headers: further HTTP headers.
        fields: a form in place of the body, by field name. ``str`` and ``bytes`` are plain fields, a pair
            ``(value, content type)`` is an uploaded file, any other value is uploaded JSON.
    """

    body: Any = b""
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, request: Any) -> Call:
        """``request`` as a call: a call stays one, anything else is a body."""
        return request if isinstance(request, Call) else cls(request)

    def to_wire(self, request_id: str, added: Mapping[str, str] | None = None) -> WireRequest:
        """The request as the frontend hands it to a worker (InferenceRequestHandler.parseRequest).

        Args:
            request_id: the id it gives it.
            added: headers it sets itself, over those of the client.

        Raises:
            ValueError: the body is a multipart form, which is given as ``fields``.
        """
        added = added or {}
        if self.fields is not None:
            # The frontend has parsed the form; the boundary is never looked at again.
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
            raise ValueError("a multipart form is given as Call(fields={name: value}), not as raw bytes")
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
