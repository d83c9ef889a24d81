"""EfficientNet-Lite0 sees the cat of scikit-image's chelsea.png through a real TorchServe."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.e2e.support import get, post
from tests.varied_images import base64_of, encoded

ROOT = Path(__file__).parents[3]
CATS = range(281, 286)
"""Tabby, tiger cat, Persian cat, Siamese cat, Egyptian cat."""
MODEL = "efficientnet-lite0"


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import archive_image_classification as script
    finally:
        sys.path.pop(0)
    return script


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory, script):
    archive = script.build(tmp_path_factory.mktemp("store"))
    with server_factory(models=[archive]) as server:
        yield server


@pytest.fixture(scope="module")
def cat():
    """The photo, as scikit-image's wheel has it."""
    origin = importlib.util.find_spec("skimage").origin
    return (Path(origin).parent / "data" / "chelsea.png").read_bytes()


def multipart(data):
    boundary = uuid.uuid4().hex
    lines = [
        f"--{boundary}",
        'Content-Disposition: form-data; name="data"; filename="cat.png"',
        "Content-Type: image/png",
    ]
    head, tail = "\r\n".join(lines) + "\r\n\r\n", f"\r\n--{boundary}--\r\n"
    return head.encode() + data + tail.encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def ways(png):
    jpeg = encoded(Image.open(io.BytesIO(png)), "JPEG", quality=90)
    return {
        "png": (png, {"Content-Type": "image/png"}),
        "jpeg": (jpeg, {"Content-Type": "image/jpeg"}),
        "no content type": (png, {}),
        "base64": ({"inputs": base64_of(png)}, {}),
        "data url": ({"inputs": "data:image/png;base64," + base64_of(png)}, {}),
        "multipart": multipart(png),
        "kserve": ({"instances": [{"b64": base64_of(jpeg)}]}, {}),
    }


def test_a_cat_at_the_top_however_it_is_sent(server, script, cat, record_property):
    names, best = script.labels(), {}
    for way, (body, headers) in ways(cat).items():
        path = "/v1/models/efficientnet-lite0:predict" if way == "kserve" else None
        answer = post(server, MODEL, body, headers, path=path)
        assert answer.status == 200, (way, answer.body[:300])
        found = answer.json()["predictions"][0] if way == "kserve" else answer.json()
        best[way] = found[0]["label"]
        if way == "png":
            record_property("answer", json.dumps(found))
    assert len(set(best.values())) == 1, best
    assert best["png"] in [names[index] for index in CATS]


def test_the_explanation_is_about_the_cat(server, cat):
    body = {"inputs": base64_of(cat), "parameters": {"n_steps": 20, "grid": 7}}
    answer = post(server, MODEL, body, path=f"/explanations/{MODEL}", timeout=120)
    assert answer.status == 200, answer.body[:300]
    told = answer.json()
    assert np.sum(told["grid"]) == pytest.approx(told["logit"] - told["baseline"] + told["delta"], abs=0.05)


def test_the_description(server):
    [told] = get(server, f"/models/{MODEL}?customized=true", management=True).json()
    told = (
        json.loads(told["customizedMetadata"])
        if isinstance(told["customizedMetadata"], str)
        else told["customizedMetadata"]
    )
    assert "image-classification" in json.dumps(told)
