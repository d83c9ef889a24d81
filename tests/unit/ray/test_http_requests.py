"""What becomes of a request's bytes, against TorchServe's own reader of the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.acceptance.shapes import many, single
from tsbatch.emulation.client_request import Call
from tsbatch.emulation.frames import Part, encode_batch
from tsbatch.emulation.model_loader import Connection
from tsbatch.errors import BadRequest
from tsbatch.ray.http_requests import deadline_of, parts_of, request_from
from tsbatch.worker.adapter import requests_from

NOW = 1_790_000_000.0
TEXTS = [f"Sentence number {place}, Zürich." for place in range(40)]
SHAPES = [*single(TEXTS[0]), *many(TEXTS)]
OTHERS = [
    Call(b'{"inputs": ', "application/json"),
    Call(b'{"inputs": "a"}', "application/json; charset=utf-8"),
    Call(b'{"inputs": "a"}', "Application/JSON"),
    Call(b"\xff\xfe", "text/plain"),
    Call("größer".encode("latin-1"), "text/plain; charset=latin-1"),
    Call(b"", "text/plain"),
    Call(b"", ""),
    Call(b"0", "application/json"),
    Call(b"[" * 100_000, "application/json"),
    Call(b"a=1&a=2&b=&%C3%BC=%FF", "application/x-www-form-urlencoded"),
    Call(b"\x00\x01", "application/octet-stream"),
    Call(b"hello", "text/html", headers={"explain": "True", "X-Own": "a"}),
]


class Context:
    """As much of TorchServe's context as its adapter reads."""

    def __init__(self, headers):
        self._headers = headers

    def get_all_request_header(self, index):
        return self._headers[index].get_request_properties()

    def get_request_id(self, index):
        return "an-id"


def on_torchserve(call):
    """The request that TorchServe's Python makes of a call."""
    from ts.protocol.otf_message_handler import retrieve_msg
    from ts.service import Service

    _, batch = retrieve_msg(Connection(encode_batch([call.to_wire("an-id")])))
    headers, rows, _ = Service.retrieve_data_for_inference(batch)
    (request,) = requests_from(rows, Context(headers))
    return request


def same(one, other):
    return type(one) is type(other) and bool(np.all(one == other))


@pytest.mark.parametrize(
    "call",
    [
        *OTHERS,
        *(
            Call(shape.body, shape.headers.get("Content-Type", ""))
            for shape in SHAPES
            if "multipart" not in str(shape.headers)
        ),
    ],
    ids=lambda call: f"{call.content_type} {call.body[:20]!r}",
)
def test_the_fields_are_torchserves(call):
    wanted = on_torchserve(call)
    sent = {"content-type": call.content_type} if call.content_type else {}
    found = request_from({**sent, **call.headers}, call.body, "predict")
    assert found.fields.keys() == wanted.fields.keys()
    assert all(same(found.fields[name], wanted.fields[name]) for name in wanted.fields)
    assert found.content_types == wanted.content_types
    assert found.kind == wanted.kind
    assert found.headers.get("x-own") == wanted.headers.get("x-own")


def multipart(*parts, boundary="b0"):
    lines = [b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary.encode(), head, value) for head, value in parts]
    return b"".join(lines) + b"--%b--\r\n" % boundary.encode()


def test_a_form_of_several_parts_has_netty_s_fields():
    body = multipart(
        (
            b'Content-Disposition: form-data; name="data"; filename="a.json"\r\nContent-Type: application/json',
            b'{"a": 1}',
        ),
        (b'Content-Disposition: form-data; name="plain"', b"caf\xc3\xa9\r\n--b\r\n\x00"),
        (b'Content-Disposition: form-data; name="typed"\r\nContent-Type: application/json', b"7"),
        (b'content-disposition: form-data; name="file"; filename="x"', b""),
        (b"Content-Disposition: form-data", b"without a name"),
    )
    parts = parts_of(body, "multipart/form-data; boundary=b0")
    assert parts == [
        Part("data", b'{"a": 1}', "application/json"),
        Part("plain", b"caf\xc3\xa9\r\n--b\r\n\x00", ""),
        Part("typed", b"7", ""),
        Part("file", b"", "application/octet-stream"),
    ]
    request = request_from({"content-type": 'multipart/form-data; boundary="b0"'}, body, "predict")
    assert request.fields["data"] == {"a": 1}
    assert request.fields["plain"] == bytearray(b"caf\xc3\xa9\r\n--b\r\n\x00")
    assert request.fields["typed"] == bytearray(b"7")


@pytest.mark.parametrize(
    "content_type, body",
    [
        ("multipart/form-data", b"--b0\r\n"),
        ("multipart/form-data; boundary=b0", b"no boundary in here"),
        ("multipart/form-data; boundary=b0", b'--b0\r\nContent-Disposition: form-data; name="a"\r\n\r\nhalf of it'),
        ("multipart/form-data; boundary=b0", b"--b0\r\n: nothing\r\n\r\n\r\n--b0--"),
    ],
)
def test_a_form_that_is_none_is_a_400(content_type, body):
    with pytest.raises(BadRequest, match="multipart form"):
        request_from({"content-type": content_type}, body, "predict")


def test_id_arrival_and_kind():
    import time

    now = time.time()
    request = request_from({"x-request-id": "mine", "X-Request-Start": f"t={now - 1:.6f}"}, b"", "explain")
    assert request.id == "mine"
    assert request.arrival == pytest.approx(now - 1)
    assert request.kind == "explain"


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("1790000001.5", 1_790_000_001.5),
        ("t=1790000001.5", 1_790_000_001.5),
        ("1790000001500", 1_790_000_001.5),
        ("1790000001500000", 1_790_000_001.5),
        ("1789999999", 1_789_999_999.0),
        ("5", None),
        ("soon", None),
        ("nan", None),
        ("", None),
    ],
)
def test_a_deadline_by_its_magnitude(text, wanted):
    assert deadline_of({"x-request-deadline": text}, NOW) == wanted


def test_no_deadline():
    assert deadline_of({}, NOW) is None
