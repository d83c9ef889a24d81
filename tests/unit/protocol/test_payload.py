"""Every shape of body a client sends; fields are as a running TorchServe 0.12.0 hands them over."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.bodies import FORM, JSON, form, raw, texts
from tsbatch.errors import BadRequest, PayloadTooLarge, Unprocessable, UnsupportedMedia
from tsbatch.protocol.payload import Payload, read_payload
from tsbatch.protocol.request import Request

SENTENCE = "Grüße, 世界"
UTF8 = bytearray(SENTENCE.encode())


@pytest.mark.parametrize(
    "request_",
    [
        Request.of({"inputs": SENTENCE}),
        Request.of({"input": SENTENCE}),
        Request.of({"text": SENTENCE}),
        Request.of({"data": SENTENCE}),
        Request.of({"inputs": SENTENCE, "options": {"wait_for_model": True}}),
        Request.of({"inputs": {"text": SENTENCE}}),
        Request.of(SENTENCE),
        Request.of({"b64": base64.b64encode(UTF8).decode()}),
        raw(SENTENCE, "text/plain"),
        raw(bytearray(SENTENCE.encode("utf-16")), "text/plain; charset=utf-16"),
        raw(UTF8),
        raw(UTF8, "application/octet-stream"),
        raw(bytearray(json.dumps({"inputs": SENTENCE}).encode())),
        raw(bytearray(json.dumps(SENTENCE).encode())),
        raw(bytearray(b"\xef\xbb\xbf" + json.dumps(SENTENCE).encode()), JSON),
        raw(bytearray(json.dumps({"inputs": SENTENCE}).encode()), "application/vnd.api+json"),
        form(data=UTF8),
        form(body=UTF8),
        form(file=UTF8),
        form(text=UTF8),
        form(inputs=UTF8),
        form("multipart/form-data; boundary=x", data=bytearray(json.dumps({"inputs": SENTENCE}).encode())),
        Request(fields={"data": UTF8}),  # gRPC Predictions
        Request(fields={"model_name": bytearray(b"m"), "body": {"inputs": SENTENCE}}, content_types={"body": JSON}),
    ],
)
def test_one_bare_text_in_every_plain_shape(request_):
    payload = texts(request_)
    assert payload == Payload([SENTENCE], {}, [None], "plain", single=True, client_id=None)


@pytest.mark.parametrize(
    "request_",
    [
        Request.of({"inputs": ["a", "b"]}),
        Request.of(["a", "b"]),
        Request.of([{"text": "a"}, {"data": "b"}]),
        form(data=bytearray(b'["a", "b"]')),
        raw(bytearray(b'["a", "b"]')),
    ],
)
def test_several_texts(request_):
    payload = texts(request_)
    assert payload.values == ["a", "b"]
    assert payload.single is False


def test_a_list_of_one_is_not_a_bare_item():
    assert texts(Request.of(["a"])).single is False


@pytest.mark.parametrize(
    "request_, says",
    [
        (raw(bytearray(b'{"inputs": '), JSON), "line 1, column 12"),
        (raw(bytearray(b'{\n"inputs": x}'), JSON), "line 2, column 11"),
        (raw(bytearray(b"[" * 200_000), JSON), "nested too deeply"),
        (raw(bytearray(b"1" * 5000), JSON), "too long"),
        (raw(bytearray(b'"\xff"'), JSON), "byte 1"),
        (raw(bytearray(b'{"inputs": ')), "not valid JSON"),
        (raw(bytearray(b"\xff\xfe\xfd")), "not UTF-8"),
        (raw(bytearray(b"\xe4"), "text/plain"), "not UTF-8"),
        (raw(bytearray(), JSON), "empty"),
        (raw("", "text/plain"), "empty"),
        (raw(bytearray()), "empty"),
        (form(data=bytearray()), "empty"),
        (Request.of([]), "no item"),
        (Request.of({"inputs": []}), "no item"),
        (Request.of({"instances": []}), "no item"),
        (Request.of({}), "no value"),
        (Request.of({"parameters": {}}), "no value"),
        (Request(fields={}), "it is empty"),
        (Request(fields={"image": b"x"}), "'image'"),
        (Request.of({"inputs": "a", "text": "b"}), "'inputs', 'text'"),
        (Request.of({"inputs": "a", "parametrs": {}}), "did you mean 'parameters'"),
        (Request.of({"inputs": "a", "top_k": 3}), "'top_k'"),
        (Request.of({"inputss": "a"}), "did you mean 'inputs'"),
        (Request.of({"inputs": "a", "parameters": [1]}), "a list"),
        (Request.of({"inputs": [{"text": "a", "parameters": 3}]}), "item 0"),
        (Request.of({"instances": "a"}), "a string"),
        (Request.of({"instances": ["a"], "inputs": "b"}), "'inputs'"),
        (form(data=b"a", file=b"b"), "'data', 'file'"),
        (form(data=b"a", parameters=b"{"), "the field parameters is not valid JSON"),
        (form(data=b"a", parameters=b"3"), "a number"),
        (Request.of({"inputs": [{"b64": "*"}]}), "not base64"),
    ],
)
def test_what_cannot_be_read_is_a_400_that_says_why(request_, says):
    with pytest.raises(BadRequest) as caught:
        texts(request_)
    assert says in caught.value.message
    assert caught.value.expected
    assert caught.value.status == 400


@pytest.mark.parametrize("value", [0, 1.5, False, [], {}, {"a": 1}, ["b"], None])
def test_what_is_no_text_is_a_422(value):
    with pytest.raises(Unprocessable, match="item 1 is"):
        texts(Request.of(["fine", value]))


def test_half_a_surrogate_pair_is_a_422():
    with pytest.raises(Unprocessable, match="character 1"):
        texts(raw(bytearray(b'["x\\ud800"]'), JSON))


@pytest.mark.parametrize("value", [0, 0.0, "", [], {}, False])
def test_a_falsy_item_is_a_value(value):
    assert read_payload(Request.of([value])).values == [value]
    assert read_payload(Request.of({"instances": [value]})).values == [value]
    assert read_payload(Request.of({"inputs": [value, value]})).values == [value, value]


@pytest.mark.parametrize("value", [0, 0.0, "", False])
def test_a_falsy_bare_item_is_a_value(value):
    for body in (value, {"inputs": value}):
        payload = read_payload(Request.of(body), item_ndim=0)
        assert (payload.values, payload.single) == ([value], True)


def test_null_is_a_422():
    for body in (None, [None], {"inputs": None}, {"instances": [1, None]}):
        with pytest.raises(Unprocessable, match="null"):
            read_payload(Request.of(body))


@pytest.mark.parametrize(
    "ndim, body, values, single",
    [
        (1, [1, 2], [[1, 2]], True),
        (1, [[1, 2], [3]], [[1, 2], [3]], False),
        (1, [[]], [[]], False),
        (1, [[], [1]], [[], [1]], False),
        (1, {"inputs": [0]}, [[0]], True),
        (1, [{"data": [1]}, {"data": [2]}], [[1], [2]], False),
        (2, [[1, 2]], [[[1, 2]]], True),
        (2, [[[1]], [[2]]], [[[1]], [[2]]], False),
        (0, [1, 2], [1, 2], False),
        (None, [[1, 2]], [[1, 2]], False),
    ],
)
def test_item_ndim_tells_one_item_from_several(ndim, body, values, single):
    payload = read_payload(Request.of(body), item_ndim=ndim)
    assert (payload.values, payload.single) == (values, single)


def test_other_objects_are_values_of_their_own():
    pair = {"question": "q", "context": "c"}
    assert read_payload(Request.of(pair)).values == [pair]
    assert read_payload(Request.of({"inputs": pair, "parameters": {"top_k": 1}})).values == [pair]
    assert read_payload(Request.of([pair, {"text": "a", "text_pair": "b"}])).values[1] == {
        "text": "a",
        "text_pair": "b",
    }


def test_parameters_of_request_and_item():
    body = {"inputs": [{"text": "a", "parameters": {"k": 2}}, "b"], "parameters": {"k": 1}}
    payload = texts(Request.of(body))
    assert payload.parameters == {"k": 1}
    assert payload.item_parameters == [{"k": 2}, None]
    assert payload.values == ["a", "b"]


PNG = b"\x89PNG\r\n\x1a\n\x00"
PNG64 = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    "request_",
    [
        raw(bytearray(PNG), "image/png"),
        raw(bytearray(PNG)),
        raw(bytearray(PNG), "application/octet-stream"),
        form(file=bytearray(PNG)),
        raw(PNG64, "text/plain"),
        Request.of(PNG64),
        Request.of(PNG64.rstrip("=")),
        Request.of(base64.urlsafe_b64encode(PNG).decode()),
        Request.of(f"data:image/png;base64,{PNG64}"),
        Request.of({"b64": PNG64}),
        Request.of({"data": {"b64": PNG64}}),
        Request.of({"instances": [{"b64": PNG64}]}),
        Request.of({"instances": [{"data": PNG64}]}),
        Request.of({"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1, 1], "data": [PNG64]}]}),
    ],
)
def test_bytes_in_every_shape(request_):
    assert read_payload(request_, wants="bytes", item_ndim=0).values == [PNG]


def test_bytes_from_what_is_not_base64():
    with pytest.raises(BadRequest, match="base64"):
        read_payload(Request.of("hello!"), wants="bytes")
    with pytest.raises(Unprocessable, match="a number"):
        read_payload(Request.of([5]), wants="bytes")


def test_too_many_items_is_a_413_with_both_numbers():
    for body in (["a"] * 65, {"instances": ["a"] * 65}):
        with pytest.raises(PayloadTooLarge, match="65 items, but at most 64"):
            texts(Request.of(body))
    assert len(texts(Request.of(["a"] * 64)).values) == 64


def test_kserve_v1():
    request = Request.of({"instances": ["a", {"data": "b"}], "parameters": {"k": 1}})
    assert texts(request) == Payload(["a", "b"], {"k": 1}, [None, None], "kserve-v1", single=False, client_id=None)
    assert request.protocol == "kserve-v1"


def test_the_protocol_is_known_also_when_reading_fails():
    request = Request.of({"instances": []})
    with pytest.raises(BadRequest):
        read_payload(request)
    assert request.protocol == "kserve-v1"
    request = Request.of({"id": 7, "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1]}]})
    with pytest.raises(BadRequest):
        read_payload(request)
    assert (request.protocol, request.client_id) == ("open-inference", "7")


def read_or_refuse(request, **options):
    """The payload, or None for an error with a 4xx; any other exception is a defect."""
    with contextlib.suppress(BadRequest, PayloadTooLarge, Unprocessable, UnsupportedMedia):
        return read_payload(request, **options)
    return None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["inputs", "instances", "data", "name", "shape", "datatype"]) | st.text(), inner
        )
    ),
    max_leaves=12,
)
WANTS = st.sampled_from(["text", "bytes", "json"])


@settings(deadline=None)
@given(JSON_VALUES, WANTS, st.sampled_from([None, 0, 1, 2]))
@example({"inputs": [{"name": "x", "datatype": [], "shape": [0], "data": []}]}, "json", None)
@example({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2**70, 0], "data": []}]}, "json", None)
def test_any_json_gives_items_or_a_4xx(body, wants, ndim):
    payload = read_or_refuse(Request.of(body), wants=wants, item_ndim=ndim)
    if payload:
        assert payload.values
        assert len(payload.values) == len(payload.item_parameters)


@settings(deadline=None)
@given(st.binary(), st.sampled_from(["", JSON, "text/plain", "text/plain; charset=utf-16", FORM]), WANTS)
def test_any_bytes_give_items_or_a_4xx(body, content_type, wants):
    payload = read_or_refuse(raw(bytearray(body), content_type), wants=wants)
    assert payload is None or payload.values


@settings(deadline=None)
@given(st.text(min_size=1).filter(lambda text: text[0] not in '{["' and not text[0].isspace() and text[0] != "\ufeff"))
def test_any_text_survives(text):
    shapes = (
        raw(bytearray(text.encode())),
        raw(text, "text/plain"),
        Request.of({"inputs": text}),
        form(data=bytearray(text.encode())),
        raw(bytearray(json.dumps(text).encode()), JSON),
    )
    for request in shapes:
        assert texts(request).values == [text], quote(text)


@pytest.mark.parametrize(
    "body", [{f"inputz{number}": number for number in range(200_000)}, {"inputs": "a", "p" * 5_000_000: 1}]
)
def test_many_or_long_wrong_keys_cost_next_to_nothing(body):
    started = time.process_time()
    with pytest.raises(BadRequest) as caught:
        texts(raw(body, JSON))
    assert time.process_time() - started < 0.3
    assert len(caught.value.message) < 400


PAIR = frozenset({"text", "text_pair"})


@pytest.mark.parametrize(
    "body, values, parameters, single",
    [
        ({"text": "a", "text_pair": "b"}, [{"text": "a", "text_pair": "b"}], {}, True),
        ({"text": "a", "text_pair": "b", "parameters": {"k": 1}}, [{"text": "a", "text_pair": "b"}], {"k": 1}, True),
        ({"text": ["a", "b"]}, ["a", "b"], {}, False),
        ({"inputs": {"text": "a", "text_pair": "b"}}, [{"text": "a", "text_pair": "b"}], {}, True),
        ([{"text": "a", "text_pair": "b"}, "c"], [{"text": "a", "text_pair": "b"}, "c"], {}, False),
        ({"instances": [{"text": "a", "text_pair": "b"}]}, [{"text": "a", "text_pair": "b"}], {}, False),
    ],
)
def test_an_object_of_item_keys_is_one_item(body, values, parameters, single):
    payload = read_payload(Request.of(body), item_keys=PAIR)
    assert (payload.values, dict(payload.parameters), payload.single) == (values, parameters, single)


def test_an_object_of_item_keys_may_have_parameters_of_its_own():
    payload = read_payload(Request.of([{"text": "a", "text_pair": "b", "parameters": {"k": 1}}]), item_keys=PAIR)
    assert payload.values == [{"text": "a", "text_pair": "b"}]
    assert payload.item_parameters == [{"k": 1}]


def test_an_object_of_item_keys_is_taken_by_a_text_task_too():
    bodies = [{"text": "a", "text_pair": "b"}, {"inputs": [{"text": "a", "text_pair": "b"}]}]
    for body in bodies:
        assert read_payload(Request.of(body), wants="text", item_keys=PAIR).values == [{"text": "a", "text_pair": "b"}]
    with pytest.raises(Unprocessable, match="an object with the keys 'text_pair'"):
        read_payload(Request.of({"inputs": {"text_pair": "b"}}), wants="text")


@pytest.mark.parametrize("broken", ["half \ud800", ["whole", "half \ud800"]])
def test_the_texts_of_an_object_must_be_unicode(broken):
    body = {"text": "ä", "text_pair": broken}
    with pytest.raises(Unprocessable, match="surrogate pair at character 5"):
        read_payload(Request.of(body), wants="text", item_keys=PAIR)
