"""object-detection against transformers' pipeline on the same folder."""

from __future__ import annotations

import json

import pytest

from tests.tiny_images import CLASSES, detr, processor_of, save_processor, yolos
from tests.varied import answers_in_batches
from tests.varied_images import FILES, base64_of, encoded, opened, picture
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.object_detection import ObjectDetectionHandler
from tsbatch.worker.context import ModelContext

KINDS = {"detr": detr, "yolos": yolos}
THRESHOLDS = (0.17, 0.24, 0.33)


def load(folder, **settings):
    loaded = ObjectDetectionHandler()
    loaded.load(ModelContext(model_dir=folder, batch_size=32, config={"tsbatch": settings}))
    return loaded


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    KINDS[request.param](folder)
    return folder


@pytest.fixture(scope="module")
def handler(folder):
    return load(folder)


def thresholds():
    """One a file, in turn."""
    return [THRESHOLDS[place % len(THRESHOLDS)] for place in range(len(FILES))]


@pytest.fixture(scope="module")
def expected(folder):
    from transformers import AutoModelForObjectDetection, pipeline

    model = AutoModelForObjectDetection.from_pretrained(folder)
    pipe = pipeline("object-detection", model=model, image_processor=processor_of(folder), device="cpu")
    return [pipe(opened(data), threshold=threshold) for data, threshold in zip(FILES, thresholds(), strict=True)]


def test_as_the_pipeline_alone_and_in_mixed_batches(handler, expected, record_property):
    assert sum(bool(found) for found in expected) > 30, "something is found in most images"
    assert len({json.dumps(found) for found in expected if found}) > 30, "and not the same"
    worst = 0.0
    requests = [
        {"inputs": base64_of(data), "parameters": {"threshold": threshold}}
        for data, threshold in zip(FILES, thresholds(), strict=True)
    ]
    for place, answer in answers_in_batches(handler, requests):
        wanted = expected[place]
        assert [found["label"] for found in answer] == [found["label"] for found in wanted]
        assert [found["box"] for found in answer] == [found["box"] for found in wanted]
        worst = max([worst, *(abs(a["score"] - b["score"]) for a, b in zip(answer, wanted, strict=True))])
    assert worst <= 1e-4
    record_property("worst", worst)


def test_scores_are_apart_enough_for_that(handler, expected):
    for found, threshold in zip(expected, thresholds(), strict=True):
        assert all(abs(each["score"] - threshold) > 1e-4 for each in found)


def test_boxes_are_in_pixels_of_the_upright_original(handler):
    small, large = picture(3, 60, 90), picture(3, 60, 90).resize((900, 600))
    bodies = [{"inputs": base64_of(encoded(image, "PNG")), "parameters": {"threshold": 0}} for image in (small, large)]
    one, ten = (json.loads(reply.body) for reply in handler.answer([Request.of(body) for body in bodies]))
    assert len(one) == len(ten) == 12
    assert max(found["box"]["xmax"] for found in ten) > 100


def test_two_thresholds_share_a_pass(handler):
    data = base64_of(FILES[0])
    bodies = [{"inputs": data, "parameters": {"threshold": threshold}} for threshold in (0.0, 1.0)]

    class Nowhere:
        def send(self, index, reply):
            pass

    record = handler.run_batch([Request.of(body, index=place) for place, body in enumerate(bodies)], Nowhere())
    assert record.forward_passes == 1
    every, none = (json.loads(reply.body) for reply in handler.answer([Request.of(body) for body in bodies]))
    assert (len(every), none) == (12, [])


@pytest.mark.parametrize("threshold", [-0.1, 1.5, "high", None, float("nan")])
def test_a_wrong_threshold_is_refused(handler, threshold):
    body = {"inputs": base64_of(FILES[0]), "parameters": {"threshold": threshold}}
    first, second = handler.answer([Request.of(body), Request.of(base64_of(FILES[0]))])
    assert (first.status, second.status) == (422, 200)


def test_the_description(handler):
    [reply] = handler.answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert (told["task"], told["labels"]) == ("object-detection", CLASSES)


def test_a_processor_that_knows_no_boxes_is_refused(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_processor(tmp_path, "ViT")
    with pytest.raises(LoadError, match="no post_process_object_detection"):
        load(tmp_path)
