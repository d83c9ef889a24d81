"""Which field holds the value, what it is by its content type, and what the other fields are."""

from __future__ import annotations

import json

import pytest

from tests.unit.bodies import JSON, form, raw, texts
from tsbatch.errors import BadRequest, RequestError, UnsupportedMedia
from tsbatch.protocol.payload import read_payload
from tsbatch.protocol.request import Request


def test_charset_that_torchserve_cut_off_the_field_is_honoured():
    wrong = "Ã¤".encode("latin-1").decode()  # latin-1 bytes that TorchServe could read as UTF-8
    assert wrong == "ä"
    assert texts(raw(wrong, "text/plain; charset=latin-1")).values == ["Ã¤"]
    assert texts(raw(bytearray(b"\xe4"), 'text/plain; Charset="ISO-8859-1"')).values == ["ä"]


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
    for charset in [
        "hex",
        "rot13",
        "zip",
        "\x00",
        "punycode",
        "idna",
        "unicode_escape",
        "raw-unicode-escape",
        "undefined",
    ]:
        with pytest.raises(RequestError):
            texts(raw(bytearray(b"61"), f"text/plain; charset={charset}"))


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
