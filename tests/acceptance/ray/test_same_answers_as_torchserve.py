"""The same archives on TorchServe and on Ray Serve give the same answers."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager

import numpy as np
import pytest

from tests.acceptance.ray_side import ray_here
from tests.acceptance.shapes import JSON, many, single
from tests.acceptance.support import embedding_archive
from tests.e2e.one_broken import GUILTY, assert_close
from tests.e2e.support import at_once, post
from tests.tiny_tasks import TINY
from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.worker.cpu_cores import usable_cores

SENTENCE = "Das Café in Zürich öffnet um sieben."
FORTY = [f"Sentence number {place}{', longer' * (place % 7)}." for place in range(40)]
ADDRESSES = ("/predictions/embed", "/predictions/embed/1.0", "/v1/models/embed:predict", "/v2/models/embed/infer")
TOLERANCE = 1e-5
"""The most that answers may differ in any number where their batches differ: other batches are packed otherwise."""

LINES = """import torch
from tsbatch import BatchHandler


class Scales(BatchHandler):
    item_ndim = 1

    def load_model(self):
        return torch.manual_seed(0) and torch.nn.Linear(3, 2)

    def preprocess(self, items):
        return torch.tensor([item.value for item in items], dtype=torch.float32)

    def postprocess(self, outputs, items):
        return [{"scores": row, "best": int(row.argmax())} for row in outputs]
"""

BAD = {
    "broken JSON": (JSON, b'{"inputs": '),
    "an empty body": (JSON, b""),
    "no value": (JSON, b"{}"),
    "an empty list": (JSON, b"[]"),
    "an unknown key": (JSON, b'{"inputs": "a", "prameters": {}}'),
    "an unknown parameter": (JSON, b'{"inputs": "a", "parameters": {"dimension": 3}}'),
    "a number": (JSON, b"7"),
    "half of a surrogate pair": (JSON, b'{"inputs": "\\ud83d"}'),
    "65 items": (JSON, json.dumps(["hello"] * 65).encode()),
    "too many characters": (JSON, json.dumps("x" * 100_001).encode()),
    "not UTF-8": ({"Content-Type": "text/plain"}, b"\xff\xfe\xfa"),
    "an image": ({"Content-Type": "image/png"}, b"\x89PNG"),
    "an unknown charset": ({"Content-Type": "text/plain; charset=x-none"}, b"hello"),
    "compressed": ({"Content-Type": "text/plain", "Content-Encoding": "gzip"}, b"\x1f\x8b"),
    "a form without a value": ({"Content-Type": "application/x-www-form-urlencoded"}, b"sentence=hello"),
    "two values": ({"Content-Type": "application/x-www-form-urlencoded"}, b"data=one&text=two"),
    "KServe without a list": (JSON, b'{"instances": "a"}'),
    "a tensor without a shape": (JSON, b'{"inputs": [{"name": "a", "datatype": "BYTES", "data": ["a"]}]}'),
    "a tensor of numbers": (JSON, b'{"inputs": [{"name": "a", "datatype": "FP32", "shape": [1], "data": [1.0]}]}'),
}


@pytest.fixture(scope="module")
def ray():
    with ray_here() as running:
        yield running


@pytest.fixture(scope="module")
def torchserve(server_factory):
    with server_factory() as server:
        yield server


@pytest.fixture(scope="module")
def embed(ray, torchserve, tmp_path_factory):
    """The embedding model on both; the names of the two in the order of :func:`both`."""
    folder = tmp_path_factory.mktemp("embed")
    archive = embedding_archive(folder, delay=100)
    with on_both(ray, torchserve, archive, "embed"):
        yield


@contextmanager
def on_both(ray, torchserve, archive, name, route="/"):
    """One archive that answers on both servers; on Ray under ``route``, since the embedding model is there too."""
    with torchserve.management() as management:
        management.register(archive.as_uri(), model_name=name)
        try:
            management.wait_ready(name)
            # As many threads as its one worker has on TorchServe.
            with ray.serving(archive, name, "--cpus", str(usable_cores()), "--route", route):
                yield
        finally:
            management.unregister(name)


def both(ray, torchserve, path, body, headers, route=""):
    """The answers of TorchServe and of Ray."""
    return post(torchserve, "", body, headers, path=path), ray.post(route + path, body, headers)


def without_id(body):
    """The body without the server's own id, which stands in answers that have none of the client's."""
    return re.sub(rb'"id":"[0-9a-f-]{36}"', b'"id":"its own"', body)


def assert_same(one, other, what):
    assert other.status == one.status, f"{what}: {one.status} {one.body[:300]!r}, {other.status} {other.body[:300]!r}"
    assert without_id(other.body) == without_id(one.body), what
    assert other.headers["content-type"] == one.headers["content-type"], what


@pytest.mark.parametrize("address", ADDRESSES)
def test_line_1_alone_every_shape_is_answered_to_the_bit(ray, torchserve, embed, address, record_property):
    shapes = [*single(SENTENCE), *many(FORTY)]
    for shape in shapes:
        one, other = both(ray, torchserve, address, shape.body, shape.headers)
        assert one.status == 200, shape.name
        assert_same(one, other, shape.name)
    record_property(f"line1_{address.strip('/').replace('/', '_')}", f"{len(shapes)} shapes, equal to the bit")


@pytest.mark.parametrize("address", ADDRESSES)
def test_line_1_what_is_wrong_is_told_in_the_same_words(ray, torchserve, embed, address, record_property):
    statuses = {}
    for what, (headers, body) in BAD.items():
        one, other = both(ray, torchserve, address, body, headers)
        assert 400 <= one.status < 500, what
        assert_same(one, other, what)
        statuses[what] = one.status
    record_property(
        f"line1_bad_{address.strip('/').replace('/', '_')}", f"{len(BAD)}: {sorted(set(statuses.values()))}"
    )


def test_line_1_good_and_bad_at_once(ray, torchserve, embed, record_property):
    """Eight at a time, of which some are bad: nobody's answer depends on who shares the batch."""
    count, bad = len(single(SENTENCE)), list(BAD.values())
    shapes = [single(FORTY[place % 40])[place] for place in range(count)]  # in a batch each has a text of its own
    largest = 0.0
    for start in range(0, len(shapes), 5):
        good = shapes[start : start + 5]
        calls = [(shape.headers, shape.body) for shape in good] + [
            bad[(start + place) % len(bad)] for place in range(3)
        ]
        answers = at_once([lambda call=call: ray.post(ADDRESSES[0], call[1], call[0]) for call in calls])
        alone = [post(torchserve, "", body, headers, path=ADDRESSES[0]) for headers, body in calls]
        assert [answer.status for answer in answers] == [answer.status for answer in alone]
        for shape, found, wanted in zip(good, answers, alone, strict=False):
            differences = np.abs(np.array(shape.read(found.json())) - np.array(shape.read(wanted.json())))
            largest = max(largest, float(differences.max()))
        for found, wanted in zip(answers[len(good) :], alone[len(good) :], strict=True):
            assert without_id(found.body) == without_id(wanted.body)
    assert largest <= TOLERANCE
    record_property("line1_mixed", f"largest difference {largest:.1e}")


def test_line_1_eight_in_one_batch(ray, torchserve, embed, record_property):
    """Eight requests that travel in one batch on both. Who comes first is chance, but a batch is computed longest
    first, and these are all of different lengths: so it is the same batch, and the answers are equal to the bit.
    """
    sent = [{"inputs": f"{'longer, ' * place}sentence."} for place in range(8)]
    found = {}
    for name, ask in {
        "torchserve": lambda body: post(torchserve, "", body, path=ADDRESSES[0]),
        "ray": lambda body: ray.post(ADDRESSES[0], body),
    }.items():
        for _ in range(20):
            answers = at_once([lambda body=body, ask=ask: ask(body) for body in sent])
            assert {answer.status for answer in answers} == {200}
            if all('batch;desc="8/8"' in answer.headers["server-timing"] for answer in answers):
                found[name] = [answer.body for answer in answers]
                break
        else:
            pytest.fail(f"{name}: eight requests at once never shared a batch")
    assert len(set(found["ray"])) == 8
    assert found["ray"] == found["torchserve"]
    record_property("line1_eight_in_one_batch", "equal to the bit")


def test_line_1_a_handler_of_twelve_lines(ray, torchserve, tmp_path, record_property):
    assert len([line for line in LINES.splitlines() if line.strip()]) <= 12
    handler = tmp_path / "scales_handler.py"
    handler.write_text(LINES, encoding="utf-8")
    config = ModelConfig(workers=1, batch_size=8, max_batch_delay=50, threads=1)
    archive = package(name="scales", handler=handler, config=config, output_dir=tmp_path)
    calls = [
        ({"inputs": [0.5, 1, -2]}, 200),
        ({"instances": [[1, 2, 3], [4, 5, 6]]}, 200),
        ({"inputs": ["no", "number"]}, 500),
        ([[0.1, 0.2, 0.3]], 200),
        ({"inputs": []}, 400),
    ]
    with on_both(ray, torchserve, archive, "scales", "/scales"):
        for body, status in calls:
            one, other = both(ray, torchserve, "/predictions/scales", json.dumps(body).encode(), JSON, "/scales")
            assert one.status == status
            assert_same(one, other, body)
        answers = at_once([lambda body=body: ray.post("/scales/predictions/scales", body) for body, _ in calls])
        assert [answer.status for answer in answers] == [status for _, status in calls]
    record_property("line1_own_handler", f"{len(calls)} calls, equal to the bit")


@pytest.mark.parametrize("task", sorted(TINY))
def test_line_1_every_ready_made_task(ray, torchserve, tmp_path, task, record_property):
    """Eight requests, one of them broken: alone equal to the bit on both, together close, and the broken one told."""
    tiny = TINY[task]
    (tmp_path / "model").mkdir()
    tiny.save(tmp_path / "model")
    config = ModelConfig(workers=1, batch_size=8, max_batch_delay=100)
    name = f"tiny-{task}"  # TorchServe has no model whose name begins with "token"
    archive = package(name=name, task=task, model_dir=tmp_path / "model", config=config, output_dir=tmp_path)
    bodies = [*tiny.good[:GUILTY], tiny.broken, *tiny.good[GUILTY + 1 :]]
    sent = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    with on_both(ray, torchserve, archive, name, "/task"):
        alone = []
        for body in sent:
            one, other = both(ray, torchserve, f"/predictions/{name}", body, tiny.headers, "/task")
            assert_same(one, other, body[:80])
            alone.append(other)
        together = at_once(
            [lambda body=body: ray.post(f"/task/predictions/{name}", body, tiny.headers) for body in sent]
        )
    assert [answer.status == 200 for answer in alone] == [place != GUILTY for place in range(8)]
    assert len({answer.body for answer in alone}) == 8, "answers that do not differ show nothing"
    for found, wanted in zip(together, alone, strict=True):
        assert found.status == wanted.status
        assert_close(found.json(), wanted.json())
    record_property(f"line1_{task}", "8 requests alone equal to the bit, together within 1e-4")
