"""The addresses of a replica: what answers where, with which status and headers."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.unit.ray.replica_side import Doubles, batches_of, call, loaded
from tsbatch.protocol.reply import Reply
from tsbatch.ray import routes
from tsbatch.ray.routes import build

JSON = {"content-type": "application/json"}
V2 = {"id": "7", "inputs": [{"name": "a", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}]}


class Explains(Doubles):
    def explain_items(self, items):
        return [f"twice {item.value}" for item in items]

    def encode_response(self, results, request):
        reply = super().encode_response(results, request)
        if request.headers.get("wanted") == "odd":
            reply = Reply(b"raw", 206, "Odd", "text/x; y=日本\r\n", {"X Odd:\n": "a\r\nb", "Content-Length": "9"})
        if request.headers.get("wanted") == "path":
            reply.headers["X-Path"] = request.headers.get("url_path", "none")
        return reply


@pytest.fixture(scope="module")
def batches():
    return batches_of(loaded(Explains()))


@pytest.fixture
def ask(batches):
    def ask(method, path, value=None, **headers):
        body = b"" if value is None else json.dumps(value).encode()
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return asyncio.run(call(build(batches, lambda: None), method, path, body, {**JSON, **named}))

    return ask


@pytest.mark.parametrize(
    "path, value, wanted",
    [
        ("/predictions/m", 3, 6),
        ("/predictions/m/1.0", [1, 2], [2, 4]),
        ("/explanations/m", 3, "twice 3"),
        ("/explanations/m/1.0", 3, "twice 3"),
        ("/v1/models/m:predict", {"instances": [1, 2]}, {"predictions": [2, 4]}),
        ("/v1/models/m:explain", {"instances": [1]}, {"predictions": ["twice 1"]}),
    ],
)
def test_values_in_answers_out(ask, path, value, wanted):
    answer = ask("POST", path, value)
    assert (answer.status, answer.json()) == (200, wanted)
    assert answer.headers["content-type"] == "application/json"
    assert "handler;dur=" in answer.headers["server-timing"]
    assert int(answer.headers["content-length"]) == len(answer.body)


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/versions/1.0/infer"])
def test_open_inference(ask, path):
    answer = ask("POST", path, V2)
    assert answer.json() == {
        "id": "7",
        "model_name": "m",
        "model_version": "1.0",
        "outputs": [{"name": "output", "datatype": "FP32", "shape": [2], "data": [2.0, 4.0]}],
    }


@pytest.mark.parametrize(
    "method, path, status, kind",
    [
        ("POST", "/predictions/other", 404, "ModelNotFoundException"),
        ("POST", "/predictions/m/2.0", 404, "ModelVersionNotFoundException"),
        ("POST", "/v2/models/other/infer", 404, "ModelNotFoundException"),
        ("GET", "/models/other", 404, "ModelNotFoundException"),
        ("GET", "/nothing/here", 404, "ResourceNotFoundException"),
        ("GET", "/v2/models/m/infer", 405, "MethodNotAllowedException"),
        ("DELETE", "/predictions/m", 405, "MethodNotAllowedException"),
    ],
)
def test_errors_have_the_form_of_torchserve(ask, method, path, status, kind):
    answer = ask(method, path, 1)
    assert answer.status == status
    assert (answer.json()["code"], answer.json()["type"]) == (status, kind)
    assert answer.json()["message"]


@pytest.mark.parametrize(
    "path, wanted",
    [
        ("/ping", {"status": "Healthy"}),
        ("/models", {"models": [{"modelName": "m"}]}),
        ("/v1/models", {"models": ["m"]}),
        ("/v1/models/m", {"name": "m", "ready": True}),
        ("/v2/health/live", {"live": True, "ready": True}),
        ("/v2/health/ready", {"live": True, "ready": True}),
        ("/v2/models/m/ready", {"name": "m", "ready": True}),
    ],
)
def test_health(ask, path, wanted):
    answer = ask("GET", path)
    assert (answer.status, answer.json()) == (200, wanted)


def test_metadata(ask):
    assert ask("GET", "/v2/models/m").json()["versions"] == ["1.0"]
    assert ask("GET", "/v2/models/m/versions/1.0").json()["name"] == "m"
    assert ask("GET", "/v2").json()["name"]


@pytest.mark.parametrize("path, status", [("/ping", 500), ("/v2/health/ready", 503), ("/v2/models/m/ready", 503)])
def test_a_replica_that_is_being_replaced_is_not_ready(ask, batches, monkeypatch, path, status):
    monkeypatch.setattr(batches, "overdue", True)
    assert ask("GET", path).status == status
    assert ask("GET", "/v1/models/m").json()["ready"] is False


def test_a_deadline_reaches_the_line(ask):
    answer = ask("POST", "/predictions/m", 1, x_request_deadline=str(time.time() - 1))
    assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_queue_and_assembly_need_the_arrival(ask):
    assert "queue;dur=" in ask("POST", "/predictions/m", 1, x_request_start=str(time.time())).headers["server-timing"]
    assert "queue;dur=" not in ask("POST", "/predictions/m", 1).headers["server-timing"]


def test_whatever_a_handler_answers_can_be_sent(ask):
    answer = ask("POST", "/predictions/m", 1, wanted="odd")
    assert (answer.status, answer.body) == (206, b"raw")
    assert answer.headers["x-odd--"] == "a??b"
    assert answer.headers["content-length"] == "3"
    assert answer.headers["content-type"] == "text/x; y=????"


def test_further_segments_reach_the_handler_as_on_torchserve(ask):
    assert ask("POST", "/predictions/m/1.0/a/b", 1, wanted="path").headers["x-path"] == "a/b"
    assert ask("POST", "/predictions/m/1.0", 1, wanted="path").headers["x-path"] == "none"


def test_a_body_over_the_limit_is_a_413(batches, ask):
    answer = ask("POST", "/predictions/m", "x" * batches.settings.request_bytes)
    assert (answer.status, answer.json()["error"]["code"]) == (413, "payload_too_large")


def test_a_broken_form_is_a_400(batches):
    headers = {"content-type": "multipart/form-data"}
    answer = asyncio.run(call(build(batches, lambda: None), "POST", "/predictions/m", b"--", headers))
    assert (answer.status, answer.json()["error"]["code"]) == (400, "bad_request")


def test_described_as_torchserve_describes(ask, monkeypatch):
    async def two():
        return [{"id": "0", "status": "READY"}, {"id": "1", "status": "STARTING"}]

    monkeypatch.setattr(routes, "_replicas", two)
    (described,) = ask("GET", "/models/m?customized=true").json()
    assert (described["modelName"], described["modelVersion"]) == ("m", "1.0")
    assert (described["batchSize"], described["maxBatchDelay"], described["minWorkers"]) == (4, 100, 1)
    assert len(described["workers"]) == 2
    assert described["customizedMetadata"]["handler"] == "Explains"
    (described,) = ask("GET", "/models/m/1.0").json()
    assert "customizedMetadata" not in described


def test_the_end_closes_the_handler(batches):
    closed = []
    sent = []
    steps = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive():
        assert not closed
        return next(steps)

    async def send(message):
        sent.append(message["type"])

    app = build(batches, lambda: closed.append(True))
    asyncio.run(app({"type": "lifespan", "asgi": {"version": "3.0"}}, receive, send))
    assert closed == [True]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
