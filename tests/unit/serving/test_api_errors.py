"""What an answer of TorchServe means beside its status."""

from __future__ import annotations

import json

import httpx
import pytest

from tsbatch.serving.api_errors import is_race, is_token_error, message_of


def answer(status, told):
    return httpx.Response(status, content=told if isinstance(told, bytes) else json.dumps(told).encode())


@pytest.mark.parametrize(
    "told, message",
    [
        ({"type": "X", "message": "Model not\n  found: m"}, "Model not found: m"),
        ({"code": 500, "type": "ConcurrentModificationException"}, "ConcurrentModificationException"),
        ({"type": "X", "message": None}, "X"),
        ({"code": 500}, '{"code": 500}'),
        (["busy"], '["busy"]'),
        (b"<html>", "<html>"),
        (b"", "the server answered with status 500"),
    ],
)
def test_what_an_answer_says_is_one_line(told, message):
    assert message_of(answer(500, told)) == message


@pytest.mark.parametrize(
    "status, told, race",
    [
        (500, {"type": "ConcurrentModificationException"}, True),
        (500, {"type": "NullPointerException", "message": "x"}, True),
        (400, {"type": "NullPointerException"}, False),
        (500, {"type": "InternalServerException", "message": "NullPointerException"}, False),
        (500, {"message": "x"}, False),
        (500, ["NullPointerException"], False),
        (500, b"NullPointerException", False),
    ],
)
def test_a_race_is_known_by_its_type(status, told, race):
    assert is_race(answer(status, told)) is race


def test_a_refused_token_is_a_400_with_its_type():
    assert is_token_error(answer(400, {"type": "InvalidKeyException"}))
    assert not is_token_error(answer(401, {"type": "InvalidKeyException"}))
    assert not is_token_error(answer(400, {"type": "BadRequestException"}))
