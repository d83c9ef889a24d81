"""The same texts in every shape that a client may send, and what each protocol answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

TEXT = {"Content-Type": "text/plain"}
OCTETS = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
BOUNDARY = "----five-red-apples"
MULTIPART = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}

Read = Callable[[Any], list[list[float]]]


def one(answer: Any) -> list[list[float]]:
    """The vector in a plain answer to a bare item."""
    assert set(answer) == {"embedding"}
    return [answer["embedding"]]


def several(answer: Any) -> list[list[float]]:
    """The vectors in a plain answer to a list."""
    assert isinstance(answer, list)
    return [vector for result in answer for vector in one(result)]


def kserve(answer: Any) -> list[list[float]]:
    """The vectors in a KServe v1 answer."""
    assert set(answer) == {"predictions"}
    return several(answer["predictions"])


def open_inference(answer: Any) -> list[list[float]]:
    """The vectors in an Open Inference answer."""
    assert set(answer) == {"id", "model_name", "model_version", "outputs"}
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("mine", "embed", "1.0")
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"]) == ("embedding", "FP32")
    return np.array(output["data"]).reshape(output["shape"]).tolist()


@dataclass(frozen=True)
class Shape:
    """One way to send texts.

    Attributes:
        name: what it is, for people.
        headers: the call's headers.
        body: the call's body.
        read: checks the answer's shape and gives the vectors in it.
    """

    name: str
    headers: Mapping[str, str]
    body: bytes
    read: Read


def single(text: str) -> list[Shape]:
    """One text in every shape."""
    raw = text.encode()
    return [
        Shape("text/plain", TEXT, raw, one),
        Shape("text/plain in UTF-8", {"Content-Type": "text/plain; charset=utf-8"}, raw, one),
        Shape("text/plain in Latin-1", {"Content-Type": "text/plain; charset=iso-8859-1"}, text.encode("latin-1"), one),
        Shape("octet-stream", OCTETS, raw, one),
        Shape("octet-stream that is JSON", OCTETS, json.dumps({"inputs": text}).encode(), one),
        Shape("no content type", {}, raw, one),
        Shape("no content type, JSON", {}, json.dumps(text).encode(), one),
        *_json(text, text, one),
        Shape("JSON with charset", {"Content-Type": "application/json; charset=utf-8"}, _dumps({"inputs": text}), one),
        _as_json("JSON with parameters", {"inputs": text, "parameters": {"normalize": True}}, one),
        _as_json("JSON with base64", {"inputs": {"b64": _base64(text)}}, one),
        _as_json("JSON list of one", [text], several),
        _as_json("JSON list of one object", [{"text": text}], several),
        *_forms(raw, "text/plain", one),
        *_forms(_dumps({"inputs": text}), "application/json", one),
        Shape("multipart with a parameter", MULTIPART, _multipart({"data": raw, "normalize": b"true"}), one),
        *(
            Shape(f"form {field}", FORM, urlencode({field: text}).encode(), one)
            for field in ("data", "body", "file", "text", "input", "inputs")
        ),
        _as_json("KServe v1", {"instances": [text]}, kserve),
        _as_json("KServe v1 object", {"instances": [{"data": text}]}, kserve),
        _as_json("KServe v1 base64", {"instances": [{"b64": _base64(text)}]}, kserve),
        _as_json("KServe v1 data and base64", {"instances": [{"data": {"b64": _base64(text)}}]}, kserve),
        _as_json("Open Inference [1]", _tensor([text], [1]), open_inference),
        _as_json("Open Inference [1, 1]", _tensor([[text]], [1, 1]), open_inference),
    ]


def many(texts: Sequence[str]) -> list[Shape]:
    """A list of texts in every shape that can hold one."""
    given = list(texts)
    count = len(given)
    return [
        *_json(given, given, several),
        _as_json("JSON list of objects", [{"text": text} for text in given], several),
        _as_json("JSON list of base64", {"inputs": [{"b64": _base64(text)} for text in given]}, several),
        Shape("octet-stream that is a JSON list", OCTETS, _dumps(given), several),
        *_forms(_dumps(given), "application/json", several),
        Shape("form data", FORM, urlencode({"data": _dumps(given)}).encode(), several),
        _as_json("KServe v1", {"instances": given}, kserve),
        _as_json("KServe v1 base64", {"instances": [{"b64": _base64(text)} for text in given]}, kserve),
        _as_json(f"Open Inference [{count}]", _tensor(given, [count]), open_inference),
        _as_json(f"Open Inference [{count}, 1]", _tensor([[text] for text in given], [count, 1]), open_inference),
    ]


def _json(value: Any, bare: Any, read: Read) -> list[Shape]:
    keyed = [_as_json(f"JSON {key}", {key: value}, read) for key in ("inputs", "input", "text", "data")]
    return [*keyed, _as_json("bare JSON", bare, read)]


def _forms(value: bytes, content_type: str, read: Read) -> list[Shape]:
    kind = content_type.partition("/")[2]
    return [
        *(
            Shape(f"multipart {field}, {kind}", MULTIPART, _multipart({field: value}), read)
            for field in ("data", "body", "file")
        ),
        *(
            Shape(f"uploaded {field}, {kind}", MULTIPART, _multipart({field: value}, upload=content_type), read)
            for field in ("data", "body", "file")
        ),
    ]


def _as_json(name: str, value: Any, read: Read) -> Shape:
    return Shape(name, JSON, _dumps(value), read)


def _dumps(value: Any) -> bytes:
    return json.dumps(value).encode()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _tensor(data: Any, shape: list[int]) -> dict[str, Any]:
    return {"id": "mine", "inputs": [{"name": "text", "datatype": "BYTES", "shape": shape, "data": data}]}


def _multipart(fields: Mapping[str, bytes], *, upload: str | None = None) -> bytes:
    """A multipart body; ``upload`` makes files of this content type out of the fields."""
    parts = []
    for name, value in fields.items():
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
        if upload:
            head += f'; filename="{name}.txt"\r\nContent-Type: {upload}'
        parts.append(head.encode() + b"\r\n\r\n" + value + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()
