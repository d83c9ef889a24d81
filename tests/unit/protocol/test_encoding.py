"""Answers and errors in each protocol; the oracle for JSON is the standard library's reader."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tsbatch.errors import BadRequest, ContractBroken, ReplyError, StageFailed, TsbatchError
from tsbatch.protocol.encoding import MAX_MESSAGE, ModelIdentity, dumps, encode_answer, encode_error
from tsbatch.protocol.request import Headers, Request

MODEL = ModelIdentity("m", "1.0")
TENSOR = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}
REST = Headers({"Content-Type": "application/json"})


def plain(*, single=True):
    return Request.of("x", single=single)


def kserve():
    return Request.of({"instances": ["x"]}, protocol="kserve-v1", single=False)


def open_inference(**body):
    fields = {"inputs": [TENSOR], "id": "c1", **body}
    return Request.of(fields, protocol="open-inference", single=False, client_id="c1", headers=REST, id="ts-id")


def grpc():
    return Request.of({"inputs": [TENSOR], "id": "", "model_name": "m"}, id="ts-id")


def read(reply):
    return json.loads(reply.body)


def test_plain_answers():
    assert read(encode_answer([{"a": 1}], plain(), MODEL)) == {"a": 1}
    assert read(encode_answer([1, 2], plain(single=False), MODEL)) == [1, 2]
    assert read(encode_answer([1], plain(single=False), MODEL)) == [1]
    assert read(encode_answer((1, 2), plain(single=False), MODEL)) == [1, 2]
    reply = encode_answer(["x"], plain(), MODEL)
    assert (reply.status, reply.phrase, reply.content_type) == (200, "OK", "application/json")


def test_bytes_are_sent_as_they_are_when_bare():
    reply = encode_answer([b"\x89PNG"], plain(), MODEL)
    assert (reply.body, reply.content_type) == (b"\x89PNG", "application/octet-stream")
    assert read(encode_answer([b"\xff"], plain(single=False), MODEL)) == [{"b64": "/w=="}]


def test_a_bare_request_needs_one_result():
    with pytest.raises(ContractBroken, match="2 results"):
        encode_answer([1, 2], plain(), MODEL)


def test_kserve_answer():
    assert read(encode_answer([[1.5]], kserve(), MODEL)) == {"predictions": [[1.5]]}


def test_open_inference_answer():
    answer = read(encode_answer([np.float32([1, 2])], open_inference(), MODEL))
    output = {"name": "output", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]}
    assert answer == {"id": "c1", "model_name": "m", "model_version": "1.0", "outputs": [output]}


def test_the_servers_id_stands_in_for_a_missing_one():
    assert read(encode_answer([1], grpc(), MODEL))["id"] == "ts-id"


def test_open_inference_outputs_on_request():
    results = [{"a": 1, "b": 2}]
    answer = read(encode_answer(results, open_inference(outputs=[{"name": "b"}]), MODEL))
    assert [output["name"] for output in answer["outputs"]] == ["b"]
    for wanted in ([{"name": "c"}], ["b"], 5):
        with pytest.raises(BadRequest, match="outputs that do not exist") as caught:
            encode_answer(results, open_inference(outputs=wanted), MODEL)
        assert "a, b" in caught.value.expected


def test_undecoded_tensors_are_answered_in_their_protocol_too():
    """A subclass may read the body itself; TorchServe's gRPC still needs the four keys."""
    request = grpc()
    assert request.protocol == "plain"
    assert set(read(encode_answer([1], request, MODEL))) == {"id", "model_name", "model_version", "outputs"}
    assert set(read(encode_error(BadRequest("x"), request, MODEL))) >= {"id", "model_name", "model_version", "outputs"}


def test_plain_error():
    reply = encode_error(BadRequest("no", expected="yes", stage="decode"), plain(), MODEL)
    expected = {"status": 400, "code": "bad_request", "message": "no", "expected": "yes", "stage": "decode"}
    assert read(reply) == {"error": expected}
    assert (reply.status, reply.phrase) == (400, "Bad Request")


def test_kserve_error():
    reply = encode_error(BadRequest("no", expected="yes"), kserve(), MODEL)
    assert (reply.status, read(reply)) == (400, {"error": "no; expected: yes"})


def test_open_inference_error_is_an_output_too():
    reply = encode_error(StageFailed("no"), open_inference(), MODEL)
    answer = read(reply)
    assert reply.status == 500
    assert (answer["error"], answer["id"], answer["model_name"]) == ("no", "c1", "m")
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("error", "BYTES", [1])
    assert json.loads(output["data"][0]) == {"status": 500, "code": "handler_failed", "message": "no"}


def test_grpc_error_is_given_to_java_as_an_object():
    (output,) = read(encode_error(BadRequest("no"), grpc(), MODEL))["outputs"]
    assert output["data"] == [{"status": 400, "code": "bad_request", "message": "no"}]


class Rude(ReplyError):
    status = "nine"
    phrase = "a\r\nb"

    def __init__(self, message):
        super().__init__(message)


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("message", ["\ud800", "Grüße \0", 5, None, "x" * 100_000, Unprintable(), b"\xff"])
@pytest.mark.parametrize("error", [BadRequest, Rude])
@pytest.mark.parametrize("request_", [plain(), kserve(), open_inference(), grpc(), Request(fields={})])
def test_an_error_is_always_answered(message, error, request_):
    reply = encode_error(error(message), request_, MODEL)
    assert len(json.dumps(read(reply)["error"])) < 8 * MAX_MESSAGE
    assert 400 <= reply.status <= 599
    assert reply.phrase.isascii()
    assert reply.phrase.isprintable()


def test_half_a_surrogate_pair_costs_one_character_of_the_message():
    assert read(encode_error(BadRequest("a\ud800b"), plain(), MODEL))["error"]["message"] == "a?b"


def test_a_long_message_is_cut():
    message = read(encode_error(BadRequest("x" * 5000), plain(), MODEL))["error"]["message"]
    assert len(message) == MAX_MESSAGE
    assert message.endswith("…")


def every_subclass(cls):
    return [cls, *(found for sub in cls.__subclasses__() for found in every_subclass(sub))]


def test_every_error_for_clients_can_be_sent():
    every = every_subclass(TsbatchError)
    # Ours alone: other tests derive errors that cannot even be made from a message.
    classes = [cls for cls in every if issubclass(cls, ReplyError) and cls.__module__ == "tsbatch.errors"]
    assert len(classes) > 10
    for cls in classes:
        reply = encode_error(cls("x"), plain(), MODEL)
        assert (reply.status, reply.phrase) == (cls.status, cls.phrase)


@pytest.mark.parametrize(
    "value, text",
    [
        (np.float32([0.1, 2]), "[0.1,2.0]"),
        (np.float32(0.1), "0.1"),
        (np.float16([0.5]), "[0.5]"),
        (np.array(3), "3"),
        (np.array(0.1, dtype=np.float32), "0.1"),
        (torch.tensor(0.1), "0.1"),
        (np.arange(6, dtype=np.float32).reshape(2, 3).T, "[[0.0,3.0],[1.0,4.0],[2.0,5.0]]"),
        (np.array(["a"]), '["a"]'),
        (np.array([{"a": 1}], dtype=object), '[{"a":1}]'),
        (torch.tensor([1.5, 2]), "[1.5,2.0]"),
        (torch.tensor(True), "true"),
        (torch.ones(2, requires_grad=True), "[1.0,1.0]"),
        (torch.tensor([[1.5]], dtype=torch.bfloat16), "[[1.5]]"),
        (torch.arange(4).reshape(2, 2).T, "[[0,2],[1,3]]"),
        ((1, [2], {"a": (3,)}), '[1,[2],{"a":[3]}]'),
        ({1: "a", None: 2, "b": 3}, '{"1":"a","null":2,"b":3}'),
        ({"a": np.int64(1), "b": np.bool_(True)}, '{"a":1,"b":true}'),
        (b"\xff", '{"b64":"/w=="}'),
        (float("nan"), "null"),
        (np.float32([np.inf]), "[null]"),
        ("ä€😀", '"ä€😀"'),
        (2**64 - 1, "18446744073709551615"),
    ],
)
def test_what_can_be_json(value, text):
    assert dumps(value).decode() == text


circle: dict = {"a": []}
circle["a"].append(circle)


@dataclasses.dataclass
class Point:
    x: int = 1


@pytest.mark.parametrize(
    "value, says",
    [
        ({"a": [1, {2}]}, "answer['a'][1] is a set"),
        ([object()], "answer[0] is a object"),
        (circle, "answer['a'][0] contains itself"),
        ("\ud800", "answer is a str with half of a surrogate pair"),
        ({"a": ["\ud800"]}, "answer['a'][0] is a str with half"),
        ({"\ud800": 1}, "answer is a dict that cannot be serialised"),
        ({(1, 2): 1}, "answer is a dict that cannot be serialised"),
        ([2**64], "answer[0] is an int of more than 64 bits"),
        ([np.complex64(1)], "answer[0] is a complex64"),
        (np.complex64([1]), "answer is a ndarray of complex64"),
        (np.array([1.5], dtype=">f4"), "answer is a ndarray of >f4"),
        (torch.tensor([1j]), "answer is a Tensor of torch.complex64"),
        (torch.ones(1, device="meta"), "answer is a Tensor"),
        ([Point()], "answer[0] is a dataclass (Point)"),
        ([lambda: 1], "answer[0] is a function"),
    ],
)
def test_what_cannot_be_json_is_named_with_its_place(value, says):
    with pytest.raises(ContractBroken) as caught:
        dumps(value)
    assert says in caught.value.message
    assert caught.value.expected


def test_a_deep_nest_is_an_error_too():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ContractBroken, match="cannot be serialised"):
        dumps(deep)
    while deep:  # taken apart by hand: the interpreter's own way down is recursive
        deep = deep[0]


@pytest.mark.parametrize(
    "value, place",
    [
        ([1.0, float("nan")], "answer[1]"),
        ({"a": np.float32([1, np.inf])}, "answer['a']"),
        (torch.tensor([float("nan")]), "answer"),
        ([np.array([None, float("-inf")], dtype=object)], "answer[0][1]"),
    ],
)
def test_nan_can_be_an_error(value, place):
    with pytest.raises(ContractBroken) as caught:
        dumps(value, nan="error")
    assert caught.value.message.startswith(f"{place} is or contains NaN")


def test_null_is_no_nan():
    assert dumps([None, "null", 1.5], nan="error") == b'[null,"null",1.5]'


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@settings(deadline=None)
@given(VALUES)
def test_json_is_read_back_equal(value):
    assert json.loads(dumps(value)) == value


@settings(deadline=None)
@given(st.text(st.characters()), st.sampled_from([plain(), kserve(), open_inference(), grpc()]))
def test_any_message_is_answered(message, request_):
    read(encode_error(BadRequest(message), request_, MODEL))
