"""The frames against TorchServe's own reader and writer of them."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsbatch.emulation.frames import (
    Answer,
    Part,
    WireRequest,
    WorkerDied,
    decode_response,
    encode_batch,
    failed_batch,
    read_answers,
)

otf = pytest.importorskip("ts.protocol.otf_message_handler")

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PARTS = st.builds(Part, TEXT, st.binary(max_size=50), st.sampled_from(["", "image/png", "application/octet-stream"]))
REQUESTS = st.builds(
    WireRequest, st.uuids().map(str), st.dictionaries(TEXT, TEXT, max_size=4), st.lists(PARTS, max_size=3)
)


class Socket:
    def __init__(self, frame):
        self.frame = frame

    def recv(self, size):
        data, self.frame = self.frame[:size], self.frame[size:]
        return data


class Context:
    """What create_predict_response asks of a context, one request's values a place."""

    stopping_criteria = None

    def __init__(self, statuses=(), types=(), headers=()):
        self.statuses, self.types, self.headers = statuses, types, headers

    def get_response_status(self, index):
        return self.statuses[index] if self.statuses else (None, None)

    def get_response_content_type(self, index):
        return self.types[index] if self.types else None

    def get_response_headers(self, index):
        return self.headers[index] if self.headers else {}

    def set_response_header(self, index, name, value):
        self.headers[index][name] = value


def respond(bodies, **context):
    ids = {index: f"id-{index}" for index in range(len(bodies))}
    return otf.create_predict_response(bodies, ids, "Prediction success", 200, context=Context(**context))


def answer(*bodies, **context):
    return read_answers([respond(list(bodies), **context)], [f"id-{index}" for index in range(len(bodies))])


@given(st.lists(REQUESTS, max_size=4))
def test_torchserve_reads_what_we_encode(requests):
    socket = Socket(encode_batch(requests))
    command, batch = otf.retrieve_msg(socket)
    assert (command, socket.frame) == (b"I", b"")
    assert [row["requestId"].decode() for row in batch] == [request.id for request in requests]
    for row, request in zip(batch, requests, strict=True):
        assert {h["name"].decode(): h["value"].decode() for h in row["headers"]} == request.headers
        read = [(part["name"], part["value"], part["contentType"]) for part in row["parameters"]]
        assert read == [(part.name, part.value, part.content_type) for part in request.parts]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=5))
def test_we_read_what_torchserve_writes(bodies):
    answers = answer(*bodies)
    assert [one.body for one in answers] == bodies
    assert [one.request_id for one in answers] == [f"id-{index}" for index in range(len(bodies))]
    assert all(one.status == 200 and one.ok and not one.failed_whole_batch for one in answers)


def test_status_phrase_content_type_and_headers_are_each_requests_own():
    first, second = answer(
        b"{}",
        b"no",
        statuses=[(None, None), (400, "Bad Request")],
        types=["application/json", "text/plain"],
        headers=[{"Server-Timing": "total;dur=1"}, {"X-Price": "5 €, naïve"}],
    )
    assert (first.status, first.content_type, first.headers["server-timing"]) == (
        200,
        "application/json",
        "total;dur=1",
    )
    assert (second.status, second.phrase, second.ok, second.text) == (400, "Bad Request", False, "no")
    # Netty writes Latin-1.
    assert second.headers["x-price"] == "5 ?, naïve"


def test_a_header_named_content_type_is_the_content_type():
    assert answer(b"", headers=[{"Content-Type": "image/png"}])[0].content_type == "image/png"


def test_answers_come_in_the_order_asked_for_whatever_the_frame_has():
    frame = respond([b"a", b"b", b"c"])
    assert [one.body for one in read_answers([frame], ["id-2", "id-0", "id-1"])] == [b"c", b"a", b"b"]


def test_a_failed_batch_is_every_requests_answer():
    frame = otf.create_predict_response(None, {0: "x", 1: "y"}, "Prediction failed", 503)
    answers = read_answers([frame], ["x", "y"])
    assert [(one.status, one.phrase, one.failed_whole_batch) for one in answers] == [
        (503, "Service Unavailable", True)
    ] * 2
    assert answers[0].json() == {"code": 503, "type": "InternalServerException", "message": "Prediction failed"}
    assert answers[0].content_type == answers[0].headers["content-type"] == "application/json"


def test_the_body_of_a_failed_batch_is_the_frontends():
    (one,) = failed_batch(["x"], 500, "a<b> & 'c' = ü")
    assert one.body == (
        b'{\n  "code": 500,\n  "type": "InternalServerException",\n  "message": "a<b> & \'c\' = \xc3\xbc"\n}\n'
    )


@pytest.mark.parametrize(
    "code,status,phrase", [(413, 507, "Insufficient Storage"), (507, 507, "Insufficient Storage"), (599, 599, "")]
)
def test_the_status_of_a_failed_batch(code, status, phrase):
    (one,) = failed_batch(["x"], code, "")
    assert one.status == status
    assert one.phrase == (phrase or "Unknown Status (599)")


def test_a_body_may_have_max_response_size_bytes_and_not_one_more():
    assert read_answers([respond([b"1234"])], ["id-0"], max_response_size=20)[0].body == b"1234"
    with pytest.raises(WorkerDied, match=r"the body has 21 bytes, but TorchServe accepts 20.*max_response_size"):
        read_answers([respond([b"x" * 21])], ["id-0"], max_response_size=20)


def test_the_limit_holds_for_each_body_alone():
    assert len(read_answers([respond([b"x" * 20] * 9)], [f"id-{n}" for n in range(9)], max_response_size=20)) == 9


@pytest.mark.parametrize(
    "context",
    [{"statuses": [(400, "Ungültig")]}, {"types": ["text/plain; title=ü"]}, {"statuses": [(200, "💥" * 9)]}],
    ids=["phrase", "content type", "long phrase"],
)
def test_text_that_is_not_ascii_puts_the_frame_out_of_step(context):
    with pytest.raises(WorkerDied, match=r"out of step at byte .* not ASCII"):
        answer(b"body", **context)


@pytest.mark.parametrize("cut", [1, 4, 5, 30])
def test_a_frame_that_is_cut_off(cut):
    with pytest.raises(WorkerDied, match="out of step at byte"):
        decode_response(respond([b"some body"])[:-cut])


def test_bytes_after_the_frame():
    with pytest.raises(WorkerDied, match="the end of the frame should be"):
        decode_response(respond([b"body"]) + b"\0")


@given(st.binary(max_size=80))
def test_any_bytes_are_a_response_or_a_dead_worker(noise):
    with suppress(WorkerDied):
        assert decode_response(noise).code is not None


@pytest.mark.parametrize("length", [-2, -3, 2**31 - 1])
def test_lengths_that_no_body_has(length):
    frame = struct.pack("!ii", 200, 0) + struct.pack("!i", length)
    with pytest.raises(WorkerDied):
        decode_response(frame)


@pytest.mark.parametrize(
    "context,said",
    [
        ({"headers": [{"X-A": "one\r\nSet-Cookie: two"}]}, "value of the header X-A"),
        ({"headers": [{"X-A": "one\ntwo"}]}, "value of the header X-A"),
        ({"headers": [{"X-A": "nul\0"}]}, "value of the header X-A"),
        ({"headers": [{"X A": "1"}]}, "the header name 'X A'"),
        ({"headers": [{"": "1"}]}, "the header name ''"),
        ({"headers": [{"Ü": "1"}]}, "the header name 'Ü'"),
        ({"types": ["text/plain\r\nX: y"]}, "value of the header content-type"),
        ({"statuses": [(400, "Bad\nRequest")]}, "a line break in the reason phrase"),
        ({"statuses": [(-1, "")]}, "the status -1"),
    ],
)
def test_what_netty_refuses_to_send(context, said):
    with pytest.raises(WorkerDied, match="cannot send") as caught:
        answer(b"body", **context)
    assert said in str(caught.value)


def test_an_answer_to_nobody_and_nobodys_answer():
    with pytest.raises(WorkerDied, match="not in the batch: 'id-1'"):
        read_answers([respond([b"a", b"b"])], ["id-0"])
    with pytest.raises(WorkerDied, match="1 of 2 requests"):
        read_answers([respond([b"a"])], ["id-0", "id-1"])


def test_a_streams_frames_are_one_body_under_the_first_headers():
    context = Context(headers=[{"X-A": "1"}])
    first = otf.create_predict_response([b"one "], {0: "id-0"}, "", 200, context, ts_stream_next=True)
    context.headers[0]["X-A"] = "2"
    last = otf.create_predict_response([b"two"], {0: "id-0"}, "", 200, context)
    (one,) = read_answers([first, last], ["id-0"])
    assert (one.body, one.headers["x-a"]) == (b"one two", "1")


def test_json_is_read_as_a_strict_client_does():
    assert Answer("", 200, "", b'{"a": 1}').json() == {"a": 1}
    with pytest.raises(ValueError, match=r"not JSON .* starts with '\{\"a\": NaN\}'"):
        Answer("", 200, "", b'{"a": NaN}').json()
