"""The same sentence in every shape and on every address, gRPC too."""

from __future__ import annotations

import json

import grpc
import numpy as np
import pytest

from tests.acceptance.shapes import Shape, many, one, several, single
from tests.acceptance.support import CLOSE, OneByOne, SamePid, cosine, embedding_archive, wait_for
from tests.e2e import grpc_client
from tests.e2e.support import at_once, post, worker_pids

SENTENCE = "Das Café in Zürich öffnet um sieben."
FORTY = [
    SENTENCE if place in (0, 17, 39) else f"Sentence number {place}" + ", longer" * (place % 7) for place in range(40)
]
ADDRESSES = ("/predictions/embed", "/predictions/embed/1.0", "/v1/models/embed:predict", "/v2/models/embed/infer")
SAME = 1e-5
"""The most that two answers for one text may differ in any number: other batches pad it differently."""

BAD_PREDICTIONS = {
    "broken JSON": {"data": b'{"inputs": '},
    "no field": {},
    "a field of another name": {"sentence": b"hello"},
    "two values": {"data": b"one", "text": b"two"},
    "an empty field": {"data": b""},
    "an empty list": {"data": b"[]"},
    "not UTF-8": {"data": b"\xff\xfe\xfa"},
    "an unknown parameter": {"data": b"hello", "dimension": b"3"},
    "65 items": {"data": json.dumps(["hello"] * 65).encode()},
    "too many characters": {"data": b"x" * 100_001},
}
BAD_TENSORS = {
    "no tensor": [],
    "shape and data differ": [("text", "BYTES", [3], [b"one"])],
    "no shape": [("text", "BYTES", [], [b"one"])],
    "numbers": [("text", "FP32", [2], [1.0, 2.0])],
    "a type that TorchServe passes nothing of": [("text", "FP16", [1], [])],
    "an unknown type": [("text", "STRING", [1], [])],
    "no items": [("text", "BYTES", [0], [])],
    "65 items": [("text", "BYTES", [65], [b"hello"] * 65)],
    "not UTF-8": [("text", "BYTES", [1], [b"\xff\xfe\xfa"])],
    "two tensors": [("text", "BYTES", [1], [b"one"]), ("more", "BYTES", [1], [b"two"])],
}


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory):
    archive = embedding_archive(tmp_path_factory.mktemp("line4"), batch_size=8, delay=2)
    with server_factory(models=[archive]) as server:
        yield server


@pytest.fixture(scope="module")
def worker(server):
    return SamePid(server, "embed")


@pytest.fixture(scope="module")
def wanted():
    """The oracle's vectors for the forty texts; the sentence is the first."""
    oracle = OneByOne()
    return np.array([oracle(text) for text in FORTY])


class Differences:
    """How far answers are from the one-by-one result, checked one at a time."""

    def __init__(self, wanted: np.ndarray) -> None:
        self._wanted = wanted
        self.largest, self.closest, self.count = 0.0, 1.0, 0

    def check(self, name: str, vectors: list) -> None:
        assert len(vectors) in (1, len(self._wanted)), name
        for vector, right in zip(vectors, self._wanted, strict=False):
            difference = np.abs(np.array(vector) - right).max()
            assert difference <= SAME, f"{name} differs by {difference}"
            assert cosine(vector, right) >= CLOSE, name
            self.largest = max(self.largest, float(difference))
            self.closest = min(self.closest, cosine(vector, right))
        self.count += 1

    def report(self, record_property, what: str) -> None:
        figures = f"{self.count} answers, largest difference {self.largest:.1e}, smallest cosine {self.closest:.8f}"
        record_property(f"line4_{what}", figures)
        print(f"{what}: {figures}")


def ask(server, address: str, shape: Shape):
    answer = post(server, "embed", shape.body, shape.headers, path=address)
    assert answer.status == 200, f"{shape.name} on {address}: {answer.status} {answer.body[:300]!r}"
    assert answer.headers["content-type"] == "application/json"
    return shape.read(answer.json())


@pytest.mark.parametrize("address", ADDRESSES)
def test_line_4_one_sentence_in_every_shape(server, worker, wanted, address, record_property):
    differences = Differences(wanted)
    shapes = single(SENTENCE)
    assert len({shape.name for shape in shapes}) == len(shapes)
    for shape in shapes:
        differences.check(f"{shape.name} on {address}", ask(server, address, shape))
    worker.check()
    differences.report(record_property, f"one sentence on {address}")


@pytest.mark.parametrize("address", ADDRESSES)
def test_line_4_forty_in_every_shape(server, worker, wanted, address, record_property):
    differences = Differences(wanted)
    for shape in many(FORTY):
        vectors = ask(server, address, shape)
        assert len(vectors) == 40
        differences.check(f"{shape.name} on {address}", vectors)
    worker.check()
    differences.report(record_property, f"forty sentences on {address}")


def test_line_4_all_shapes_in_mixed_batches(server, worker, wanted, record_property):
    """The shapes of one batch do not mix: each answer is in its own request's shape."""
    differences = Differences(wanted)
    shapes = single(SENTENCE)
    for start in range(0, len(shapes), 8):
        part = shapes[start : start + 8]
        found = at_once([lambda shape=shape: ask(server, ADDRESSES[0], shape) for shape in part])
        for shape, vectors in zip(part, found, strict=True):
            differences.check(shape.name, vectors)
    worker.check()
    differences.report(record_property, "all shapes, eight at a time")


def test_line_4_grpc_predictions(server, worker, wanted, record_property):
    differences = Differences(wanted)
    raw = SENTENCE.encode()
    single_fields = {field: {field: raw} for field in ("data", "body", "file", "text", "input", "inputs")}
    single_fields["JSON"] = {"data": json.dumps({"inputs": SENTENCE}).encode()}
    single_fields["parameter"] = {"data": raw, "normalize": b"true"}
    for name, fields in single_fields.items():
        differences.check(name, one(json.loads(predictions(server, fields))))
    kserve_body = json.dumps({"instances": FORTY}).encode()
    differences.check("KServe", several(json.loads(predictions(server, {"data": kserve_body}))["predictions"]))
    vectors = several(json.loads(predictions(server, {"data": json.dumps(FORTY).encode()})))
    assert len(vectors) == 40
    differences.check("forty", vectors)
    worker.check()
    differences.report(record_property, "gRPC Predictions")


def test_line_4_grpc_model_infer(server, worker, wanted, record_property):
    differences = Differences(wanted)
    forty = [text.encode() for text in FORTY]
    for shape, data in (([1], forty[:1]), ([1, 1], forty[:1]), ([40], forty), ([40, 1], forty)):
        response = model_infer(server, [("text", "BYTES", shape, data)])
        assert (response.id, response.model_name, response.model_version) == ("mine", "embed", "1.0")
        (output,) = response.outputs
        assert (output.name, output.datatype, list(output.shape)) == ("embedding", "FP32", [shape[0], 384])
        vectors = grpc_client.outputs(response)["embedding"]
        assert vectors.shape == (shape[0], 384)
        differences.check(f"ModelInfer {shape}", vectors.tolist())
    worker.check()
    differences.report(record_property, "gRPC ModelInfer")


def test_line_4_ten_good_and_ten_bad_grpc_calls_of_each_kind(server, worker, wanted, record_property):
    assert len(BAD_PREDICTIONS) == len(BAD_TENSORS) == 10
    differences = Differences(wanted)
    pids, told = {worker.pid}, []
    for bad, tensors in zip(BAD_PREDICTIONS.items(), BAD_TENSORS.items(), strict=True):
        differences.check("good Predictions", one(json.loads(predictions(server, {"data": SENTENCE.encode()}))))
        # The status is dropped on this way (GRPCJob.java): the call succeeds, and the error is in the body.
        error = json.loads(predictions(server, bad[1]))["error"]
        assert error["status"] in (400, 413, 422), bad[0]
        assert error["message"], bad[0]
        told.append(error["message"])
        good = model_infer(server, [("text", "BYTES", [1], [SENTENCE.encode()])])
        differences.check("good ModelInfer", grpc_client.outputs(good)["embedding"].tolist())
        response = model_infer(server, tensors[1])
        assert (response.id, response.model_name, response.model_version) == ("mine", "embed", "1.0"), tensors[0]
        assert [output.name for output in response.outputs] == ["error"], tensors[0]
        error = json.loads(grpc_client.outputs(response)["error"][0])
        assert error["status"] in (400, 413, 422), tensors[0]
        told.append(error["message"])
        pids |= set(worker_pids(server, "embed"))
    assert pids == {worker.pid}
    worker.check()
    for message in told:
        print(message)
    record_property(
        "line4_grpc_calls", f"{differences.count} good and {len(told)} bad ones, worker pids seen: {len(pids)}"
    )


def test_line_4_rest_and_grpc_in_one_batch(server, worker, wanted):
    """Good and bad calls of every kind at once: each is answered in its own way."""
    good, bad = {"data": SENTENCE.encode()}, {"data": b"[]"}
    tensor = ("text", "BYTES", [1], [SENTENCE.encode()])
    answers = at_once(
        [
            lambda: post(server, "embed", {"inputs": SENTENCE}),
            lambda: post(server, "embed", []),
            lambda: predictions(server, good),
            lambda: predictions(server, bad),
            lambda: model_infer(server, [tensor]),
            lambda: model_infer(server, []),
        ]
    )
    rest, rest_bad, plain, plain_bad, tensors, tensors_bad = answers
    differences = Differences(wanted)
    differences.check("REST", one(rest.json()))
    differences.check("Predictions", one(json.loads(plain)))
    differences.check("ModelInfer", grpc_client.outputs(tensors)["embedding"].tolist())
    assert rest_bad.status == 400
    assert json.loads(plain_bad)["error"]["status"] == 400
    assert [output.name for output in tensors_bad.outputs] == ["error"]
    worker.check()


def test_line_4_a_model_that_is_not_there_is_an_error_of_the_call(server, worker):
    with pytest.raises(grpc.RpcError) as caught:
        grpc_client.predictions(
            server.grpc_inference_address, "nobody", {"data": b"hello"}, token=server.inference_token
        )
    assert caught.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.NOT_FOUND)
    worker.check()


def test_line_4_stream_predictions_gets_one_answer_and_hurts_nobody(server, worker, wanted):
    """It is not offered as a stream; TorchServe hands such a call over like any other, so it is answered once."""
    differences = Differences(wanted)
    for fields, status in (({"data": SENTENCE.encode()}, 200), ({"data": b"[]"}, 400)):
        (answer,) = grpc_client.stream_predictions(
            server.grpc_inference_address, "embed", fields, token=server.inference_token
        )
        if status == 200:
            differences.check("StreamPredictions", one(json.loads(answer)))
        else:
            assert json.loads(answer)["error"]["status"] == status
    assert wait_for(lambda: worker_pids(server, "embed")) == [worker.pid]
    worker.check()


def predictions(server, fields) -> bytes:
    return grpc_client.predictions(server.grpc_inference_address, "embed", fields, token=server.inference_token)


def model_infer(server, tensors):
    return grpc_client.model_infer(
        server.grpc_inference_address, "embed", tensors, client_id="mine", token=server.inference_token
    )
