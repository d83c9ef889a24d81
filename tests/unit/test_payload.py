"""Every shape of body a client sends; fields are as a running TorchServe 0.12.0 hands them over."""

from __future__ import annotations

import base64
import contextlib
import json
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tsbatch.errors import BadRequest, PayloadTooLarge, RequestError, Unprocessable, UnsupportedMedia
from tsbatch.payload import Payload, read_payload
from tsbatch.request import Headers, Request

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def raw(body, content_type="", **headers):
    """A raw body, its content type as TorchServe gives it: without parameters on the field, whole in the headers."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(
        fields={"body": body},
        headers=Headers({"Content-Type": content_type, **names}),
        content_types={"body": content_type.partition(";")[0]},
    )


def form(content_type=FORM, **fields):
    return Request(fields=fields, headers=Headers({"Content-Type": content_type}))


def texts(request, **options):
    return read_payload(request, wants="text", item_ndim=0, **options)


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


def test_charset_that_torchserve_cut_off_the_field_is_honoured():
    wrong = "Ã¤".encode("latin-1").decode()  # latin-1 bytes that TorchServe could read as UTF-8
    assert wrong == "ä"
    assert texts(raw(wrong, "text/plain; charset=latin-1")).values == ["Ã¤"]
    assert texts(raw(bytearray(b"\xe4"), 'text/plain; Charset="ISO-8859-1"')).values == ["ä"]


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


@pytest.mark.parametrize(
    "request_",
    [
        form(),  # curl -d hello: TorchServe hands over no field at all
        form(**{'{"inputs": "a ': bytearray(), "b": bytearray(b' c"}')}),
    ],
)
def test_curl_d_without_a_content_type_gets_the_remedy(request_):
    with pytest.raises(BadRequest, match="as a form") as caught:
        texts(request_)
    assert "-H 'Content-Type: application/json'" in caught.value.expected


@pytest.mark.parametrize(
    "request_, says",
    [
        (raw(bytearray(b"x"), "image/png"), "image/png"),
        (raw(bytearray(b"x"), "text/plain; charset=klingon"), "klingon"),
        (raw(bytearray(b"x"), JSON, content_encoding="gzip"), "gzip"),
        (raw(bytearray(b"x"), "application/octet-stream", inference_header_content_length="9"), "binary tensor"),
    ],
)
def test_media_that_is_not_taken_is_a_415(request_, says):
    with pytest.raises(UnsupportedMedia, match=says):
        texts(request_)


def test_codecs_that_are_not_charsets_are_a_415():
    for charset in ("hex", "rot13", "zip", "\0"):
        with pytest.raises(RequestError):
            texts(raw(bytearray(b"61"), f"text/plain; charset={charset}"))


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


def test_other_form_fields_are_parameters():
    request = form(
        data=b"x", top_k=bytearray(b"3"), labels=b'["a"]', name=b"Ann", flag="true", nan=b"NaN", parameters=b'{"k": 9}'
    )
    expected = {"top_k": 3, "labels": ["a"], "name": "Ann", "flag": True, "nan": "NaN", "k": 9}
    assert texts(request).parameters == expected


def test_query_parameters_of_invocations():
    fields = {"model_name": bytearray(b"m"), "k": bytearray(b"4"), "j": bytearray(b"1")}
    request = Request(
        fields={**fields, "body": {"inputs": "x", "parameters": {"j": 2}}}, content_types={"body": JSON, "k": ""}
    )
    payload = texts(request)
    assert payload.values == ["x"]
    assert payload.parameters == {"k": 4, "j": 2}  # the body is nearer to the value
    empty_body = Request(fields={"text": bytearray(b"x"), "body": bytearray()}, content_types={"body": ""})
    assert texts(empty_body).values == ["x"]


@pytest.mark.parametrize("text", ["[1", '"quoted" text', "plain", "12", "[x] task"])
def test_undeclared_text_stays_text_unless_it_is_json(text):
    assert texts(raw(bytearray(text.encode()))).values == [text]


def test_undeclared_bytes_for_a_json_task_must_be_json():
    assert read_payload(raw(bytearray(b"5"))).values == [5]
    with pytest.raises(BadRequest, match="not valid JSON"):
        read_payload(raw(bytearray(b"hello")))


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
        with pytest.raises(PayloadTooLarge, match="65 items, and at most 64"):
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


def test_decoding_can_be_switched_off_in_torchserve():
    """With TS_DECODE_INPUT_REQUEST=false every body stays bytes."""
    body = {"id": "c1", "inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    request = raw(bytearray(json.dumps(body).encode()), JSON)
    assert texts(request).values == ["a"]
    assert request.fields == {"body": body}  # for the answer, which looks for the outputs asked for
    assert texts(raw(bytearray(b'{"inputs": ["a"]}'), JSON)).values == ["a"]


def test_fields_that_are_parsed_already():
    request = Request(fields={"data": ["a", "b"], "top_k": 3, "parameters": {"k": 1}})
    payload = texts(request)
    assert (payload.values, payload.parameters) == (["a", "b"], {"top_k": 3, "k": 1})


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
