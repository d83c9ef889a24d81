"""An HTTP request as the handler's loop takes it: with the very fields that TorchServe would have handed over.

TorchServe's frontend splits a form into its fields and names a raw body ``body`` (InferenceRequestHandler.java); its
worker parses what is declared as JSON and decodes what is declared as text (ts/protocol/otf_message_handler.py). The
same bytes have to become the same values here.
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
"""When nobody waits for the answer any more: a time since the epoch, written as ``X-Request-Start`` is."""
FARTHEST: Final = 86_400.0
"""Seconds; a deadline farther away than this, before or after now, is nobody's."""
_MULTIPART = "multipart/form-data"


def request_from(headers: Mapping[str, str], body: bytes, kind: Kind) -> Request:
    """One HTTP request.

    Args:
        headers: its headers.
        body: its body, whole.
        kind: what its address asks for.

    Raises:
        BadRequest: a multipart form that is none.
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
    # As on TorchServe, where these headers are how the frontend tells the worker, and any client may send them.
    if headers.get("describe") == "True":
        return "describe"
    return "explain" if headers.get("explain") == "True" else asked


def value_of(part: Part) -> Any:
    """What TorchServe's worker makes of a field; what cannot be read stays bytes, for the handler to complain about."""
    try:
        if part.content_type == "application/json":
            return json.loads(part.value.decode())
        if part.content_type.startswith("text"):
            return part.value.decode()
    except (ValueError, RecursionError):
        pass
    return bytearray(part.value)


def parts_of(body: bytes, content_type: str) -> Sequence[Part]:
    """The fields of a body.

    Raises:
        BadRequest: a multipart form that is none.
    """
    if content_type.partition(";")[0].strip().lower() == _MULTIPART:
        return _multipart(body, content_type)
    return Call(body, content_type=content_type).to_wire("").parts


def deadline_of(headers: Mapping[str, str], now: float) -> float | None:
    """The deadline in seconds since the epoch, by its magnitude in seconds, milliseconds or microseconds.

    None where there is none, or one that no clock can have meant.
    """
    value = headers.get(DEADLINE)
    if not value:
        return None
    try:
        stamp = float(value.strip().removeprefix("t="))
    except ValueError:
        return None
    return next((stamp / by for by in (1.0, 1e3, 1e6) if abs(stamp / by - now) <= FARTHEST), None)


class _Form:
    """Takes a multipart form (RFC 7578) from its parser, piece by piece.

    Attributes:
        parts: the fields that are whole.
        whole: whether the form's last boundary has come.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.whole = False
        self._headers: dict[str, str] = {}
        self._name = b""
        self._text = b""
        self._value = bytearray()

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": lambda data, start, end: self._value.extend(data[start:end]),
            "on_part_end": self._end,
            "on_end": self._end_of_form,
        }

    def _begin(self) -> None:
        self._headers, self._value = {}, bytearray()

    def _end_of_form(self) -> None:
        self.whole = True

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._text += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._name.decode("latin-1").lower()] = self._text.decode("utf-8", "replace")
        self._name = self._text = b""

    def _end(self) -> None:
        about = Message()
        about["Content-Disposition"] = self._headers.get("content-disposition", "")
        name = about.get_param("name", header="content-disposition")
        if not isinstance(name, str):
            return  # Netty drops it too
        # To Netty a part is an uploaded file, with a content type of its own, when it has a file name.
        is_file = about.get_filename() is not None
        content_type = self._headers.get("content-type", "application/octet-stream") if is_file else ""
        self.parts.append(Part(name, bytes(self._value), content_type))


def _multipart(body: bytes, content_type: str) -> Sequence[Part]:
    about = Message()
    about["Content-Type"] = content_type
    boundary = about.get_boundary()
    form = _Form()
    try:
        if not boundary:
            raise MultipartParseError("the content type names no boundary")
        parser = MultipartParser(boundary.encode("latin-1"), form.callbacks())
        parser.write(body)
        if not form.whole:
            raise MultipartParseError("its last boundary is missing")
    except (MultipartParseError, UnicodeEncodeError) as error:
        raise BadRequest(f"the multipart form cannot be read: {error}", expected="a form as RFC 7578 has it") from None
    return form.parts
