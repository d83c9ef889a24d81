"""Explanations of image-classification: complete, as a sum by hand, and mixed with predictions."""

from __future__ import annotations

import base64
import io
import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tests.integration.tasks.test_image_classification import load
from tests.tiny_images import CLASSES, processor_of, resnet, vit
from tests.varied_images import FILES, base64_of, opened
from tsbatch.protocol.request import Request

STEPS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    vit(folder, scale=8.0)
    return folder


@pytest.fixture(scope="module")
def handler(folder):
    return load(folder)


def explain(handler, bodies):
    replies = handler.answer([Request.of(body, kind="explain") for body in bodies])
    return [(reply.status, json.loads(reply.body)) for reply in replies]


def body(data, **parameters):
    return {"inputs": base64_of(data), "parameters": {"n_steps": STEPS, **parameters}}


def by_hand(folder, data, label, steps=100):
    """The same integral as a sum over the middles of equal parts, and the logits at both ends."""
    from transformers import AutoModelForImageClassification

    model, processor = AutoModelForImageClassification.from_pretrained(folder).eval(), processor_of(folder)
    image = opened(data)
    pixels = processor(image, return_tensors="pt")["pixel_values"]
    black = processor(Image.new("RGB", image.size), return_tensors="pt")["pixel_values"]
    total = torch.zeros_like(pixels)
    for step in range(steps):
        point = (black + (step + 0.5) / steps * (pixels - black)).requires_grad_(True)
        model(point).logits[0, CLASSES.index(label)].backward()
        total += point.grad
    with torch.no_grad():
        ends = [float(model(given).logits[0, CLASSES.index(label)]) for given in (pixels, black)]
    return ((pixels - black) * total / steps).sum(1)[0].numpy(), ends


@pytest.mark.parametrize("place", [0, 11])
def test_as_a_sum_by_hand(handler, folder, place):
    [(status, told)] = explain(handler, [body(FILES[place], grid=4)])
    assert status == 200
    attributions, (logit, baseline) = by_hand(folder, FILES[place], told["label"])
    assert (told["logit"], told["baseline"]) == pytest.approx((logit, baseline), abs=1e-3)
    cells = attributions.reshape(4, 8, 4, 8).sum((1, 3))
    assert np.abs(np.array(told["grid"]) - cells).max() <= 0.01 * np.abs(cells).max() + 1e-3
    assert np.abs(cells).max() > 1e-1, "and it says something"


def test_the_parts_add_up(handler):
    for status, told in explain(
        handler, [body(data, grid=cells) for data, cells in zip(FILES[:4], range(3, 7), strict=True)]
    ):
        assert status == 200
        assert np.sum(told["grid"]) == pytest.approx(told["logit"] - told["baseline"] + told["delta"], abs=1e-3)
        assert abs(told["delta"]) < 0.05 * abs(told["logit"] - told["baseline"]) + 0.05
        assert told["size"] == [32, 32]


def test_a_map_says_the_same_as_a_grid(handler):
    (_, grid), (_, drawn) = explain(handler, [body(FILES[0], grid=32), body(FILES[0], attributions="map")])
    grey = np.asarray(Image.open(io.BytesIO(base64.b64decode(drawn["map"])))).astype(float)
    assert np.abs((grey - 128) / 127 * drawn["scale"] - np.array(grid["grid"])).max() <= drawn["scale"] / 200


def test_in_one_batch_with_predictions_and_errors(handler):
    alone = [explain(handler, [body(data)])[0] for data in FILES[:3]]
    mixed = handler.answer(
        [
            Request.of(body(FILES[0]), kind="explain"),
            Request.of(base64_of(FILES[1])),
            Request.of(base64_of(b"broken"), kind="explain"),
            Request.of(body(FILES[1]), kind="explain"),
            Request.of(body(FILES[0], target="no such label"), kind="explain"),
            Request.of(body(FILES[2]), kind="explain"),
            Request.of(body(FILES[0], n_steps=10), kind="explain"),
        ]
    )
    assert [reply.status for reply in mixed] == [200, 200, 415, 200, 422, 200, 200]
    told = [json.loads(reply.body) for reply in mixed]
    for (_, expected), found in zip(alone, (told[0], told[3], told[5]), strict=True):
        assert found["label"] == expected["label"]
        assert np.abs(np.array(found["grid"]) - np.array(expected["grid"])).max() <= 1e-3
    assert isinstance(told[1], list)
    assert "one of: apple, bridge" in told[4]["error"]["expected"]


def test_a_label_may_be_chosen(handler):
    answers = explain(handler, [body(FILES[0], target=label) for label in CLASSES])
    assert [told["label"] for _, told in answers] == CLASSES
    assert len({told["logit"] for _, told in answers}) == len(CLASSES)


def test_where_captum_is_missing_the_answer_is_a_501(handler, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    [(status, told)] = explain(handler, [body(FILES[0])])
    assert status == 501
    assert "tsbatch[explain]" in told["error"]["expected"]


def test_images_of_different_shapes(tmp_path):
    resnet(tmp_path)
    handler = load(tmp_path, handler={"preprocessing": {"resize": 40}})
    answers = explain(handler, [body(data, grid=5, n_steps=8) for data in FILES[1:3]])
    assert [status for status, _ in answers] == [200] * 2
    assert len({tuple(told["size"]) for _, told in answers}) == 2


def test_a_graph_without_gradients_says_so(handler, monkeypatch):
    monkeypatch.setattr(handler, "model", object())
    [(status, _)] = explain(handler, [body(FILES[0])])
    assert status == 501
