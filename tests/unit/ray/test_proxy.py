"""The middleware of Ray's proxies: a request that was lost with its replica gets a status to retry."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.ray.replica_side import call
from tsbatch.ray.proxy import LostRequestMiddleware, middlewares


async def silent(scope, receive, send):
    """A proxy whose replica has died."""


async def answering(scope, receive, send):
    await send({"type": "http.response.start", "status": 500, "headers": []})
    await send({"type": "http.response.body", "body": b"its own"})


@pytest.mark.parametrize("path", ["/predictions/m", "/v2/models/m/infer", "/prefix/v1/models/m:predict"])
def test_a_lost_request_gets_a_503_and_when_to_retry(path):
    answer = asyncio.run(call(LostRequestMiddleware(silent), "POST", path, b"x", {"x-request-id": "mine"}))
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-request-id"] == "mine"
    assert "replica" in answer.json()["message"]


def test_an_answer_stays_what_it_is():
    answer = asyncio.run(call(LostRequestMiddleware(answering), "POST", "/predictions/m"))
    assert (answer.status, answer.body) == (500, b"its own")


def test_other_applications_keep_their_own_answers():
    assert asyncio.run(call(LostRequestMiddleware(silent), "GET", "/somebody/else")) is None


def test_ray_is_given_middleware():
    (found,) = middlewares()
    assert found.cls is LostRequestMiddleware
