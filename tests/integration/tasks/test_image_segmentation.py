"""image-segmentation against transformers' pipeline on the same folder: semantic, instance, panoptic."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from tests.tiny_images import CLASSES, detr, mask2former, maskformer, processor_of, segformer, vit
from tests.varied import answers_in_batches
from tests.varied_images import FILES, base64_of, encoded, opened, picture
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.image_segmentation import ImageSegmentationHandler
from tsbatch.worker.context import ModelContext

KINDS = {
    "segformer": segformer,
    "maskformer": maskformer,
    "mask2former": mask2former,
    "detr": lambda folder: detr(folder, "DetrForSegmentation", seed=1),
}
WISHES = [
    {"threshold": 0.2, "overlap_mask_area_threshold": 0.3},
    {"threshold": 0.3, "mask_threshold": 0.4, "overlap_mask_area_threshold": 0.2},
    {"threshold": 0.1, "overlap_mask_area_threshold": 0.1},
]


def load(folder, *, handler=None, **settings):
    loaded = ImageSegmentationHandler()
    config = {"tsbatch": settings, **({"handler": handler} if handler else {})}
    loaded.load(ModelContext(model_dir=folder, batch_size=32, config=config))
    return loaded


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("segformer", "mask2former")}
    for kind, folder in folders.items():
        KINDS[kind](folder)
    return folders


def pipeline_of(folder):
    import transformers

    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder)
    return transformers.pipeline("image-segmentation", model=model, image_processor=processor_of(folder), device="cpu")


def mask_of(answer):
    """The mask in an answer, of booleans, from either form."""
    if isinstance(answer, str):
        image = Image.open(io.BytesIO(base64.b64decode(answer)))
        assert image.mode == "L"
        return np.asarray(image) == 255
    flat = np.repeat(np.arange(len(answer["counts"])) % 2 == 1, answer["counts"])
    return flat.reshape(answer["size"], order="F")


@pytest.mark.parametrize(
    "kind, subtask",
    [
        ("segformer", None),
        pytest.param("mask2former", None, marks=pytest.mark.slow),
        pytest.param("mask2former", "semantic", marks=pytest.mark.slow),
    ],
)
def test_as_the_pipeline_alone_and_in_mixed_batches(folders, kind, subtask, record_property):
    record_property("worst", as_the_pipeline(folders[kind], subtask))


def as_the_pipeline(folder, subtask):
    """Every file, alone and in batches, with the pipeline's masks; the worst difference of a score."""
    pipe, wishes = pipeline_of(folder), [dict(WISHES[place % 3]) for place in range(len(FILES))]
    for place, wish in enumerate(wishes):
        if subtask:
            wish["subtask"] = subtask
        wish["mask_format"] = ("png", "rle")[place % 2]
    semantic = subtask == "semantic" or not hasattr(pipe.image_processor, "post_process_panoptic_segmentation")
    expected = [
        pipe(opened(data), **{name: value for name, value in wish.items() if name != "mask_format"})
        for data, wish in zip(FILES, wishes, strict=True)
    ]
    assert sum(bool(found) for found in expected) > 20, "something is found in most images"
    requests = [{"inputs": base64_of(data), "parameters": wish} for data, wish in zip(FILES, wishes, strict=True)]
    worst, differing = 0.0, 0.0
    for place, answer in answers_in_batches(load(folder), requests):
        assert [found["label"] for found in answer] == [found["label"] for found in expected[place]]
        for found, wanted in zip(answer, expected[place], strict=True):
            mask, right = mask_of(found["mask"]), np.asarray(wanted["mask"]) == 255
            assert mask.shape == right.shape
            differing = max(differing, float((mask != right).mean()))
            if semantic:
                assert found["score"] is wanted["score"] is None
            else:
                worst = max(worst, abs(found["score"] - wanted["score"]))
    assert worst <= 1e-4
    # The scaled weights make masks certain (1.0), and between two such masks rounding decides whose a pixel is.
    assert differing <= 1e-2
    return worst


def test_requests_with_different_parameters_share_a_pass(folders):
    class Nowhere:
        def send(self, index, reply):
            pass

    data = base64_of(FILES[0])
    wishes = [{}, {"threshold": 0.1}, {"subtask": "semantic"}, {"mask_format": "rle"}]
    bodies = [{"inputs": data, "parameters": wish} for wish in wishes]
    requests = [Request.of(body, index=place) for place, body in enumerate(bodies)]
    assert load(folders["mask2former"]).run_batch(requests, Nowhere()).forward_passes == 1


def test_masks_that_take_too_much_memory_are_refused(folders):
    handler = load(folders["mask2former"], handler={"mask_megabytes": 1})
    large, small = (base64_of(encoded(picture(0, *size), "PNG")) for size in ((700, 900), (30, 40)))
    wish = {"subtask": "semantic"}
    first, second = handler.answer([Request.of({"inputs": data, "parameters": wish}) for data in (large, small)])
    assert (first.status, second.status) == (413, 200)
    assert "7 masks of 900 × 700 pixels take 16 MB, over the limit of 1" in json.loads(first.body)["error"]["message"]


def test_little_memory_changes_no_semantic_mask(folders):
    body = {"inputs": base64_of(encoded(picture(0, 700, 900), "PNG"))}
    tight, usual = load(folders["segformer"], handler={"mask_megabytes": 5}), load(folders["segformer"])
    [one], [other] = (handler.answer([Request.of(body)]) for handler in (tight, usual))
    assert one.body == other.body


def test_a_subtask_that_the_model_cannot_do(folders):
    handler = load(folders["segformer"])
    body = {"inputs": base64_of(FILES[0]), "parameters": {"subtask": "panoptic"}}
    first, second = handler.answer([Request.of(body), Request.of(base64_of(FILES[0]))])
    assert (first.status, second.status) == (422, 200)
    assert json.loads(first.body)["error"]["expected"] == "one of: semantic"


def test_the_description(folders):
    [reply] = load(folders["segformer"]).answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert (told["task"], told["labels"]) == ("image-segmentation", CLASSES)


def test_another_kind_of_model_is_refused(tmp_path):
    vit(tmp_path)
    with pytest.raises(LoadError, match="'ViTForImageClassification' is not a segmentation model"):
        load(tmp_path)
