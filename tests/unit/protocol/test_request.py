"""Requests, headers and items."""

from __future__ import annotations

import pytest

from tsbatch.protocol.request import NO_PARAMETERS, Headers, Item, Request


def test_headers_are_found_in_any_case():
    headers = Headers({"X-Request-Start": "t=1", "content-type": "text/plain"})
    assert headers["x-request-start"] == headers.get("X-REQUEST-START") == "t=1"
    assert headers.get("Content-Type") == "text/plain"
    assert "X-request-START" in headers
    assert headers.get("missing") is None
    assert headers.get("missing", "") == ""
    assert len(headers) == 2
    assert sorted(headers) == ["content-type", "x-request-start"]


def test_no_headers():
    assert dict(Headers()) == dict(Headers(None)) == dict(Headers({})) == {}
    with pytest.raises(KeyError):
        Headers()["a"]


def test_a_header_value_is_never_printed():
    assert "secret" not in repr(Headers({"Authorization": "Bearer secret"}))


@pytest.mark.parametrize("value", [0, "", [], None, {"inputs": "x"}])
def test_a_request_as_a_client_would_send_it(value):
    request = Request.of(value, kind="explain")
    assert request.fields == {"body": value}
    assert request.content_types == {"body": "application/json"}
    assert request.kind == "explain"


def test_requests_share_nothing_that_can_change():
    first, second = Request({}), Request({})
    assert first.content_types is not second.content_types
    assert first.headers is not second.headers
    with pytest.raises(TypeError):
        NO_PARAMETERS["a"] = 1
    assert first != second


def test_an_item_has_room_for_the_handler():
    item = Item("x", NO_PARAMETERS, Request({}))
    item.state = {"tokens": 3}
    assert (item.position, item.state) == (0, {"tokens": 3})
    with pytest.raises(AttributeError):
        item.other = 1
