"""A fast slice of what the acceptance tests show of text embedding."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.acceptance.shapes import many, one, several, single
from tests.acceptance.support import (
    CLOSE,
    OneByOne,
    SamePid,
    cosine,
    embedding_archive,
    handler_times,
    in_one_batch,
    wait_for,
)
from tests.e2e import grpc_client
from tests.e2e.support import get, post

SENTENCE = "Das Café in Zürich öffnet um sieben."
FORTY = [SENTENCE, *(f"Sentence {number % 7}" + ", longer" * (number % 7) for number in range(39))]
JSON = {"Content-Type": "application/json"}
SAMPLE = {
    "/predictions/embed": ("text/plain", "no content type", "JSON inputs", "uploaded file, plain", "form data"),
    "/predictions/embed/1.0": ("octet-stream", "bare JSON", "multipart data, plain"),
    "/v1/models/embed:predict": ("KServe v1", "KServe v1 base64"),
    "/v2/models/embed/infer": ("Open Inference [1]",),
}
"""Which shapes are tried on which address."""


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory):
    archive = embedding_archive(tmp_path_factory.mktemp("embedding"), batch_size=8, delay=150)
    with server_factory(models=[archive]) as server:
        yield server


@pytest.fixture(scope="module")
def worker(server):
    return SamePid(server, "embed")


@pytest.fixture(scope="module")
def oracle():
    return OneByOne()


def close(vectors, texts, oracle) -> bool:
    return all(cosine(vector, oracle(text)) >= CLOSE for vector, text in zip(vectors, texts, strict=True))


def test_bad_requests_of_a_batch_hurt_only_themselves(server, worker, oracle):
    texts = [SENTENCE, "short", "A longer one. " * 30, "新しい映画", "five"]
    bodies = [*({"inputs": text} for text in texts), b'{"inputs": "half', [], {"inputs": "x" * 3_000_000}]
    answers = in_one_batch([lambda body=body: post(server, "embed", body, JSON) for body in bodies])
    assert [answer.status for answer in answers] == [200] * 5 + [400, 400, 413]
    assert close([answer.json()["embedding"] for answer in answers[:5]], texts, oracle)
    assert all(answer.json()["error"]["message"] for answer in answers[5:])
    ids = {answer.headers["x-request-id"] for answer in answers}
    lines = wait_for(lambda: [found for found in handler_times(server, "embed") if ids & set(found)])
    assert [set(found) for found in lines] == [ids]
    worker.check()


@pytest.mark.parametrize("address", SAMPLE)
def test_shapes_and_addresses(server, oracle, address):
    chosen = [shape for shape in single(SENTENCE) if shape.name in SAMPLE[address]]
    assert len(chosen) == len(SAMPLE[address])
    for shape in chosen:
        answer = post(server, "embed", shape.body, shape.headers, path=address)
        assert answer.status == 200, f"{shape.name}: {answer.body[:200]!r}"
        assert close(shape.read(answer.json()), [SENTENCE], oracle), shape.name


@pytest.mark.parametrize("name", ["JSON inputs", "KServe v1", "Open Inference [40]"])
def test_forty_in_one_request(server, oracle, name):
    (shape,) = [shape for shape in many(FORTY) if shape.name == name]
    answer = post(server, "embed", shape.body, shape.headers)
    assert answer.status == 200
    assert close(shape.read(answer.json()), FORTY, oracle)


def test_grpc_predictions(server, worker, oracle):
    ask = [{"data": SENTENCE.encode()}, {"data": b"[]"}, {}, {"data": json.dumps(FORTY).encode()}]
    found = [
        json.loads(
            grpc_client.predictions(server.grpc_inference_address, "embed", fields, token=server.inference_token)
        )
        for fields in ask
    ]
    assert close(one(found[0]), [SENTENCE], oracle)
    assert [answer["error"]["status"] for answer in found[1:3]] == [400, 400]
    assert close(several(found[3]), FORTY, oracle)
    worker.check()


def test_grpc_stream_predictions_does_not_end_the_worker(server, worker, oracle):
    (answer,) = grpc_client.stream_predictions(
        server.grpc_inference_address, "embed", {"data": SENTENCE.encode()}, token=server.inference_token
    )
    assert close(one(json.loads(answer)), [SENTENCE], oracle)
    worker.check()


def test_grpc_model_infer(server, worker, oracle):
    good, bad = [("text", "BYTES", [1], [SENTENCE.encode()])], [("text", "BYTES", [3], [b"one"])]
    responses = [
        grpc_client.model_infer(server.grpc_inference_address, "embed", tensors, token=server.inference_token)
        for tensors in (good, bad)
    ]
    vectors = grpc_client.outputs(responses[0])["embedding"]
    assert np.shape(vectors) == (1, 384)
    assert close(vectors, [SENTENCE], oracle)
    assert json.loads(grpc_client.outputs(responses[1])["error"][0])["status"] == 400
    worker.check()


def test_it_describes_itself(server):
    (model,) = get(server, "/models/embed?customized=true", management=True).json()
    told = model["customizedMetadata"]
    told = json.loads(told) if isinstance(told, str) else told
    assert told["task"] == "text-embedding"
    assert told["max_length"] == 256
