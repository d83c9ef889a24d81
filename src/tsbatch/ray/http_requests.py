"""Convert an HTTP request to a request for the handler's loop, with the same fields as on TorchServe.

TorchServe's frontend splits a form into its fields and names a raw body ``body`` (InferenceRequestHandler.java); its
worker parses fields declared as JSON and decodes fields declared as text (ts/protocol/otf_message_handler.py). The same
bytes must become the same values here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from email.message import Message
from typing import TYPE_CHECKING, Any, Final

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

from tsbatch.emulation.client_request import Call
from tsbatch.emulation.frames import Part
from tsbatch.errors import BadRequest
from tsbatch.protocol.request import Headers, Kind, Request
from tsbatch.worker.telemetry import REQUEST_START, parse_request_start

DEADLINE: Final = "x-request-deadline"
"""Until when the client waits for the answer: a time since the epoch, in the form of ``X-Request-Start``."""
MAX_DISTANCE: Final = 86_400.0
"""Seconds; a deadline farther from now, in the past or in the future, is ignored."""
_MULTIPART = "multipart/form-data"


def request_from(headers: Mapping[str, str], body: bytes, kind: Kind) -> Request:
    """Convert one HTTP request.

    Args:
        headers: its headers.
        body: its complete body.
        kind: the kind of request that its route is for.

    Raises:
        BadRequest: the multipart form is invalid.
    """
    known = Headers(headers)
    parts = parts_of(body, known.get("content-type", ""))
    return Request(
        fields={part.name: value_of(part) for part in parts},
        headers=known,
        content_types={part.name: part.content_type for part in parts},
        id=known.get("x-request-id", ""),
        arrival=parse_request_start(known.get(REQUEST_START), time.time()),
        kind=_kind(known, kind),
    )


def _kind(headers: Headers, asked: Kind) -> Kind:
    # As on TorchServe, whose frontend passes the kind to the worker in these headers; clients may send them too.
    if headers.get("describe") == "True":
        return "describe"
    return "explain" if headers.get("explain") == "True" else asked


def value_of(part: Part) -> Any:
    """Decode a field as TorchServe's worker does; an unreadable one stays bytes, so that the handler reports it."""
    try:
        if part.content_type == "application/json":
            return json.loads(part.value.decode())
        if part.content_type.startswith("text"):
            return part.value.decode()
    except (ValueError, RecursionError):
        pass
    return bytearray(part.value)


def parts_of(body: bytes, content_type: str) -> Sequence[Part]:
    """Return the fields of a body.

    Raises:
        BadRequest: the multipart form is invalid.
    """
    if content_type.partition(";")[0].strip().lower() == _MULTIPART:
        return _multipart(body, content_type)
    return Call(body, content_type=content_type).to_wire("").parts


def deadline_of(headers: Mapping[str, str], now: float) -> float | None:
    """Return the deadline in seconds since the epoch; its magnitude tells seconds, milliseconds or microseconds.

    None if there is none, or if it is implausible.
    """
    value = headers.get(DEADLINE)
    if not value:
        return None
    try:
        stamp = float(value.strip().removeprefix("t="))
    except ValueError:
        return None
    return next((stamp / unit for unit in (1.0, 1e3, 1e6) if abs(stamp / unit - now) <= MAX_DISTANCE), None)


def _multipart(body: bytes, content_type: str) -> Sequence[Part]:
    """Parse a form (RFC 7578) with the fields that Netty would find."""
    parts: list[Part] = []
    headers: dict[str, str] = {}
    name, text, value = bytearray(), bytearray(), bytearray()
    complete = False

    def begin_part() -> None:
        headers.clear()
        value.clear()

    def end_header() -> None:
        headers[name.decode("latin-1").lower()] = text.decode("utf-8", "replace")
        name.clear()
        text.clear()

    def end_part() -> None:
        disposition = _parsed("Content-Disposition", headers.get("content-disposition", ""))
        field = disposition.get_param("name", header="content-disposition")
        if isinstance(field, str):  # Netty drops a part without a name too
            # To Netty a part with a file name is an uploaded file, with its own content type.
            is_file = disposition.get_filename() is not None
            own_type = headers.get("content-type", "application/octet-stream") if is_file else ""
            parts.append(Part(field, bytes(value), own_type))

    def end_form() -> None:
        nonlocal complete
        complete = True

    callbacks: MultipartCallbacks = {
        "on_part_begin": begin_part,
        "on_header_field": lambda data, start, end: name.extend(data[start:end]),
        "on_header_value": lambda data, start, end: text.extend(data[start:end]),
        "on_header_end": end_header,
        "on_part_data": lambda data, start, end: value.extend(data[start:end]),
        "on_part_end": end_part,
        "on_end": end_form,
    }
    try:
        boundary = _parsed("Content-Type", content_type).get_boundary()
        if not boundary:
            raise MultipartParseError("the content type has no boundary")
        MultipartParser(boundary.encode("latin-1"), callbacks).write(body)
        if not complete:
            raise MultipartParseError("its last boundary is missing")
    except (MultipartParseError, UnicodeEncodeError) as error:
        raise BadRequest(f"the multipart form cannot be read: {error}", expected="a form as in RFC 7578") from None
    return parts


def _parsed(header: str, value: str) -> Message:
    message = Message()
    message[header] = value
    return message
