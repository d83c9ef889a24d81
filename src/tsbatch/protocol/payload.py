"""Read the body of a request, whatever its format, into a list of values.

::

    fields ── the value field ── bytes, text or JSON ── protocol ── items ── what the task wants
      └────── other fields: parameters                  plain, KServe v1 or Open Inference

The protocol is stored in the request as soon as it is known, so that errors are sent in it too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tsbatch.errors import BadRequest, PayloadTooLarge, Unprocessable
from tsbatch.protocol.fields import (
    EXPECTED,
    NAME,
    SHOWN,
    Wants,
    as_object,
    kind_of,
    list_names,
    read_field,
    split_fields,
)
from tsbatch.protocol.media_types import decode_base64, decode_text
from tsbatch.protocol.open_inference import from_grpc, is_open_inference, read_open_inference
from tsbatch.protocol.request import NO_PARAMETERS, Protocol, Request

VALUE_KEYS = ("inputs", "input", "text", "data")
"""Keys of a JSON object that hold the value."""

_VALUE_KEYS = frozenset(VALUE_KEYS)
_TOP_KEYS = frozenset({"parameters", "options"})  # Hugging Face clients send options for their own hosting


@dataclass(slots=True)
class Payload:
    """The contents of one request.

    Attributes:
        values: one per item, in order, in the type that the task expects.
        parameters: the parameters of the request.
        item_parameters: the parameters of each item, or None.
        protocol: the protocol of the body.
        single: True if the body held one bare item.
        client_id: the ``id`` of an Open Inference body.
    """

    values: list[Any]
    parameters: Mapping[str, Any]
    item_parameters: list[Mapping[str, Any] | None]
    protocol: Protocol
    single: bool
    client_id: str | None


def read_payload(
    request: Request,
    *,
    item_ndim: int | None = None,
    wants: Wants = "json",
    max_items: int = 64,
    item_keys: frozenset[str] = frozenset(),
) -> Payload:
    """Read the items and parameters of a request.

    ``request.protocol`` and ``request.client_id`` are set even if this raises.

    Args:
        request: the request; only the attributes that are set before decoding are read.
        item_ndim: nesting depth of one item in JSON: 0 a string or number, 1 a vector; None: a list is always
            several items.
        wants: ``text``: values are ``str``; ``bytes``: values are ``bytes``, in JSON as base64, data URL or
            ``{"b64": ...}``; ``json``: values as parsed, rows of Open Inference tensors as NumPy arrays.
        max_items: more items than this are rejected.
        item_keys: an object with these keys is one item, whatever ``wants`` is, and may have its own ``parameters``;
            its texts and lists of texts are checked like other texts.

    Raises:
        BadRequest: the body cannot be read, or has no value.
        PayloadTooLarge: too many items.
        UnsupportedMedia: the content type, charset or encoding is not supported.
        Unprocessable: a value does not have the type that the task expects.
    """
    name, parameters = split_fields(request)
    body = read_field(request, name, wants)
    single = False
    if isinstance(body, dict) and is_open_inference(body):
        items, own = _open_inference(request, name, body, wants, max_items)
    elif isinstance(body, dict) and "instances" in body:
        items, own = _kserve(request, body)
    else:
        value, own = _unwrap_body(body, wants, item_keys) if isinstance(body, dict) else (body, NO_PARAMETERS)
        single = _is_single(value, item_ndim)
        items = [value] if single else list(value)
    _check_count(items, max_items)
    unwrapped = [
        _unwrap_item(item, position, item_keys) if isinstance(item, dict) else (item, None)
        for position, item in enumerate(items)
    ]
    values = [_as_wanted(value, wants, position, item_keys) for position, (value, _) in enumerate(unwrapped)]
    item_parameters = [mine for _, mine in unwrapped]
    if parameters:
        own = {**parameters, **own}
    return Payload(values, own, item_parameters, request.protocol, single, request.client_id)


def _open_inference(
    request: Request, name: str, body: dict[str, Any], wants: Wants, max_items: int
) -> tuple[list[Any], Mapping[str, Any]]:
    request.protocol = "open-inference"
    request.client_id = str(body["id"]) if body.get("id") not in (None, "") else None
    if request.fields[name] is not body:  # TS_DECODE_INPUT_REQUEST=false; the reply needs the parsed body too
        request.fields = {**request.fields, name: body}
    return read_open_inference(body, wants=wants, base64_data=from_grpc(request), max_items=max_items)


def _kserve(request: Request, body: dict[str, Any]) -> tuple[list[Any], Mapping[str, Any]]:
    request.protocol = "kserve-v1"
    _check_keys(body, "instances", frozenset({"parameters"}))
    if not isinstance(body["instances"], list):
        message = f'"instances" is {kind_of(body["instances"])}'
        raise BadRequest(message, expected='a list with one element per item: {"instances": [...]}')
    return body["instances"], as_object(body.get("parameters"), '"parameters"')


def _unwrap_body(body: dict[str, Any], wants: Wants, item_keys: frozenset[str]) -> tuple[Any, Mapping[str, Any]]:
    """Return the value and the parameters of a plain JSON object."""
    if len(body) == 1 and not _VALUE_KEYS.isdisjoint(body):
        return next(iter(body.values())), NO_PARAMETERS
    if _is_item(body, item_keys):
        item = {key: value for key, value in body.items() if key not in _TOP_KEYS}
        return item, as_object(body.get("parameters"), '"parameters"')
    found = [key for key in VALUE_KEYS if key in body]
    if not found:
        own_value = body.keys() - _TOP_KEYS if wants == "json" else "b64" in body
        if own_value:
            return body, NO_PARAMETERS
        raise _no_value_key(body)
    if len(found) > 1:
        raise BadRequest(f"the JSON object has more than one value: {list_names(found)}", expected="one of these keys")
    _check_keys(body, found[0], _TOP_KEYS)
    return body[found[0]], as_object(body.get("parameters"), '"parameters"')


def _is_item(found: dict[str, Any], item_keys: frozenset[str]) -> bool:
    """Whether an object is one item with several keys, rather than an object that wraps a value."""
    own = found.keys() - _TOP_KEYS
    return own <= item_keys and not own <= _VALUE_KEYS


def _no_value_key(body: dict[str, Any]) -> BadRequest:
    names = [key for key in body if key not in _TOP_KEYS]
    if not names:
        return BadRequest("the JSON object has no value", expected=EXPECTED)
    # A client may send many long keys; a typo shows in the first ones.
    near = [match for key in names[:SHOWN] for match in difflib.get_close_matches(key[:NAME], VALUE_KEYS, n=1)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return BadRequest(f"the JSON object has no value, its keys are {list_names(names)}{hint}", expected=EXPECTED)


def _check_keys(body: dict[str, Any], value_key: str, others: frozenset[str]) -> None:
    if len(body) == 1:
        return
    for key in body:
        if key != value_key and key not in others:
            near = difflib.get_close_matches(key[:NAME], others, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "put parameters into the object 'parameters'"
            message = f"the key {key[:NAME]!r} beside {value_key!r} is not known; {hint}"
            raise BadRequest(message, expected=f'{{"{value_key}": ..., "parameters": {{...}}}}')


def _is_single(value: Any, item_ndim: int | None) -> bool:
    """Whether a JSON value is one item, according to the nesting depth of its lists."""
    if not isinstance(value, list):
        return True
    if not item_ndim or not value or isinstance(value[0], dict):
        return False
    depth = 0
    inner: Any = value
    while isinstance(inner, list):
        depth += 1
        inner = inner[0] if inner else None
    return depth <= item_ndim


def _check_count(items: list[Any], max_items: int) -> None:
    if not items:
        raise BadRequest("the request has no item: its list is empty", expected="at least one item")
    if len(items) > max_items:
        message = f"the request has {len(items)} items, but at most {max_items} are accepted"
        raise PayloadTooLarge(message, expected=f"{max_items} items or fewer; send the rest in another request")


def _unwrap_item(
    item: dict[str, Any], position: int, item_keys: frozenset[str]
) -> tuple[Any, Mapping[str, Any] | None]:
    """Unwrap an object that holds a value and its own parameters; any other object is the value itself."""
    if "parameters" in item and _is_item(item, item_keys):
        value = {key: part for key, part in item.items() if key not in _TOP_KEYS}
        return value, as_object(item["parameters"], f'"parameters" of item {position}')
    if len(item) > 2:
        return item, None
    for key in VALUE_KEYS:
        if key in item and (len(item) == 1 or "parameters" in item):
            own = item.get("parameters")
            return item[key], None if own is None else as_object(own, f'"parameters" of item {position}')
    return item, None


def _as_wanted(value: Any, wants: Wants, position: int, item_keys: frozenset[str]) -> Any:
    """Convert a value to the type that the task expects."""
    if value is None:
        raise Unprocessable(f"item {position} is null", expected=_item_expected(wants))
    if isinstance(value, dict) and _is_item(value, item_keys):
        _check_surrogates(value, position)
        return value
    if wants == "json":
        return value
    if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str):
        value = decode_base64(value["b64"], f"item {position}")
    if wants == "bytes":
        if isinstance(value, str):
            value = decode_base64(value, f"item {position}")
        if isinstance(value, (bytes, bytearray)):
            return bytes(value)
    elif isinstance(value, (bytes, bytearray)):
        return decode_text(value, "", f"item {position}")
    elif isinstance(value, str):
        _check_surrogates(value, position)
        return value
    raise Unprocessable(f"item {position} is {kind_of(value)}", expected=_item_expected(wants))


def _check_surrogates(value: str | dict[str, Any], position: int) -> None:
    """Reject text that is not valid Unicode, also in the texts and lists of texts of an item with several keys."""
    parts = [value] if isinstance(value, str) else value.values()
    for text in (text for part in parts for text in (part if isinstance(part, list) else [part])):
        if isinstance(text, str) and not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                message = f"item {position} is not Unicode text: half of a surrogate pair at character {error.start}"
                raise Unprocessable(message, expected="whole characters") from None


def _item_expected(wants: Wants) -> str:
    if wants == "json":
        return "a JSON value"
    return 'a string, or {"b64": "..."}' if wants == "text" else 'base64, a data: URL, or {"b64": "..."}'
