"""Find the field of a request that holds the value, and read it as JSON, text or bytes.

A raw body is the field ``body``; forms and gRPC Predictions have field names of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from tsbatch.errors import BadRequest, UnsupportedMedia
from tsbatch.protocol.media_types import UNDECLARED, decode_text, is_json, media_type, parse_json, read_undeclared
from tsbatch.protocol.request import NO_PARAMETERS, Request

Wants = Literal["text", "bytes", "json"]

VALUE_FIELDS = ("data", "body", "file", "text", "input", "inputs")
"""Fields that hold the value; every other field is a parameter."""
EXPECTED = '{"inputs": ...}, {"instances": [...]}, an Open Inference body, or a form with the field data'

SHOWN = 6
"""Maximum number of names in a message."""
NAME = 40
"""Maximum number of characters of a client's name in a message."""

_ROUTING = frozenset({"model_name"})  # /invocations passes its query parameters as fields, including this one
_CURL = "the value with -H 'Content-Type: application/json' (or text/plain): curl -d alone sends a form"


def split_fields(request: Request) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the field with the value, and the other fields as parameters.

    Raises:
        BadRequest: no field or more than one field holds a value, or a parameter cannot be read.
    """
    fields = request.fields
    if len(fields) == 1 and "body" in fields:
        return "body", NO_PARAMETERS
    found = [name for name in VALUE_FIELDS if name in fields]
    if len(found) > 1:  # /invocations?text=... with an empty body
        found = [name for name in found if name != "body" or fields[name] not in (b"", "")]
    if len(found) != 1:
        raise _no_value_field(request, found)
    parameters: dict[str, Any] = {}
    for name, value in fields.items():
        if name != found[0] and name != "parameters" and name not in _ROUTING:
            parameters[name] = _scalar(value, name)
    if "parameters" in fields:
        given = fields["parameters"]
        where = "the field parameters"
        parsed = parse_json(given, where) if isinstance(given, (bytes, bytearray, str)) else given
        parameters.update(as_object(parsed, where))
    return found[0], parameters


def _no_value_field(request: Request, found: list[str]) -> BadRequest:
    if found:
        message = f"more than one field holds a value: {list_names(found)}"
        return BadRequest(message, expected="one of them; send several items as a JSON list")
    names = [name for name in request.fields if name not in _ROUTING]
    kind, _ = media_type(request.headers.get("content-type", ""))
    if kind == "application/x-www-form-urlencoded":
        fields = f"without a field data ({list_names(names)})" if names else "without any field"
        return BadRequest(f"the body was sent as a form, {fields}", expected=_CURL)
    fields = f"its fields are {list_names(names)}" if names else "it is empty"
    expected = f"the value in one of the fields {', '.join(VALUE_FIELDS)}"
    return BadRequest(f"the request has no value: {fields}", expected=expected)


def _scalar(value: Any, name: str) -> Any:
    if not isinstance(value, (bytes, bytearray, str)):
        return value
    text = decode_text(value, "", f"the field {name[:NAME]!r}")
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> Any:
    raise ValueError(constant)  # in a form, NaN and Infinity are just words


def read_field(request: Request, name: str, wants: Wants) -> Any:
    """Return the value of a field: parsed JSON, text as ``str``, anything else as ``bytes``.

    Raises:
        BadRequest: it is empty, or does not match its content type.
        UnsupportedMedia: the content type, charset or encoding is not supported.
    """
    raw = request.fields[name]
    declared = request.content_types.get(name, "")
    if declared == "application/json" and not isinstance(raw, (bytes, bytearray)):
        return raw
    kind, charset = media_type(declared)
    where = "the body" if name == "body" else f"the field {name}"
    if not isinstance(raw, (bytes, bytearray, str)):
        return raw
    if name == "body":
        charset = charset or _check_headers(request, kind)
    if len(raw) == 0:
        raise BadRequest(f"{where} is empty", expected=EXPECTED)
    if is_json(kind):
        return parse_json(raw, where, charset)
    if kind.startswith("text/"):
        return decode_text(raw, charset, where)
    if wants == "bytes":
        return raw if isinstance(raw, str) else bytes(raw)
    if kind not in UNDECLARED:
        taken = "text" if wants == "text" else "JSON"
        message = f"{where} has the content type {kind[:80]!r}, but this model accepts {taken}"
        raise UnsupportedMedia(message, expected="application/json or text/plain")
    return raw if isinstance(raw, str) else read_undeclared(raw, where, text_allowed=wants == "text")


def _check_headers(request: Request, kind: str) -> str:
    """Return the charset of a raw body, which TorchServe removes from the content type of the field.

    Raises:
        UnsupportedMedia: the body is compressed, or uses the binary tensor format of the Open Inference Protocol.
    """
    headers = request.headers
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMedia(f"the body is encoded as {encoding[:40]!r}", expected="no Content-Encoding")
    if "inference-header-content-length" in headers:
        raise UnsupportedMedia("the body has binary tensor data", expected='tensors with "data" as a JSON list')
    whole, charset = media_type(headers.get("content-type", ""))
    return charset if whole == kind else ""


def as_object(value: Any, where: str) -> Mapping[str, Any]:
    """Return ``value`` as parameters by name; no parameters for null.

    Raises:
        BadRequest: it is not a JSON object.
    """
    if value is None:
        return NO_PARAMETERS
    if not isinstance(value, dict):
        raise BadRequest(f"{where} is {kind_of(value)}", expected="a JSON object with parameters by name")
    return value


def kind_of(value: Any) -> str:
    """Describe the type of a JSON value in words, without showing the value."""
    if isinstance(value, dict):
        return f"an object with the keys {list_names(value)}" if value else "an empty object"
    names = {str: "a string", bool: "a truth value", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "null" if value is None else "an array of numbers")


def list_names(names: Iterable[str]) -> str:
    """List the first names, shortened, for a message."""
    given = list(names)
    more = f" and {len(given) - SHOWN} more" if len(given) > SHOWN else ""
    return ", ".join(repr(name[:NAME]) for name in given[:SHOWN]) + more
