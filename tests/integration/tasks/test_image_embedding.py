"""image-embedding against transformers used by hand on the same folder, one image at a time."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.tiny_images import clip, processor_of, resnet, vit
from tests.varied import answers_in_batches
from tests.varied_images import FILES, base64_of, opened
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.image_embedding import ImageEmbeddingHandler
from tsbatch.worker.context import ModelContext

KINDS = {
    "vit": lambda folder: vit(folder, "ViTModel"),
    "resnet": lambda folder: resnet(folder, "ResNetModel"),
    "clip": clip,
}


def load(folder, *, handler=None, **settings):
    loaded = ImageEmbeddingHandler()
    config = {"tsbatch": settings, **({"handler": handler} if handler else {})}
    loaded.load(ModelContext(model_dir=folder, batch_size=32, config=config))
    return loaded


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, save in KINDS.items():
        save(folders[kind])
    return folders


def outputs_by_hand(folder, files=FILES):
    """What the model gives for each file: its output object, or a vector where it knows texts too."""
    from transformers import AutoModel

    model, processor = AutoModel.from_pretrained(folder).eval(), processor_of(folder)
    for data in files:
        inputs = processor(opened(data), return_tensors="pt")
        with torch.no_grad():
            if hasattr(model, "get_image_features"):
                features = model.get_image_features(**inputs)
                yield features if isinstance(features, torch.Tensor) else features.pooler_output
            else:
                yield model(**inputs)


def unit(vector):
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize("kind", KINDS)
def test_as_by_hand_alone_and_in_mixed_batches(folders, kind, record_property):
    outputs = outputs_by_hand(folders[kind])
    expected = [(found if kind == "clip" else found.pooler_output).flatten().numpy() for found in outputs]
    apart = np.linalg.norm(np.stack(expected)[:, None] - np.stack(expected)[None], axis=-1)
    assert np.median(apart) > 1e-1, "the vectors differ"
    requests = [
        {"inputs": base64_of(data), "parameters": {"normalize": bool(place % 2)}} for place, data in enumerate(FILES)
    ]
    worst = 0.0
    for place, answer in answers_in_batches(load(folders[kind]), requests):
        wanted = unit(expected[place]) if place % 2 else expected[place]
        worst = max(worst, float(np.abs(np.array(answer["embedding"]) - wanted).max()))
    assert worst <= 1e-4
    record_property("worst", worst)


def test_the_pipeline_agrees(folders):
    from transformers import AutoModel, pipeline

    model = AutoModel.from_pretrained(folders["vit"])
    pipe = pipeline("image-feature-extraction", model=model, image_processor=processor_of(folders["vit"]), device="cpu")
    handler = load(folders["vit"])
    for data in FILES[:5]:
        [answer] = handler.answer([Request.of(base64_of(data))])
        assert json.loads(answer.body)["embedding"] == pytest.approx(pipe(opened(data), pool=True)[0], abs=1e-4)


@pytest.mark.parametrize(
    "kind, pooling, by_hand",
    [
        ("vit", "cls", lambda found: found.last_hidden_state[0, 0]),
        ("vit", "mean", lambda found: found.last_hidden_state[0].mean(0)),
        ("vit", "pooler", lambda found: found.pooler_output[0]),
        ("resnet", "mean", lambda found: found.last_hidden_state[0].mean((1, 2))),
    ],
)
def test_pooling_and_length_as_the_archive_says(folders, kind, pooling, by_hand):
    handler = load(folders[kind], handler={"pooling": pooling, "normalize": True})
    replies = handler.answer([Request.of(base64_of(data)) for data in FILES[:5]])
    for reply, found in zip(replies, outputs_by_hand(folders[kind], FILES[:5]), strict=True):
        assert json.loads(reply.body)["embedding"] == pytest.approx(unit(by_hand(found).numpy()).tolist(), abs=1e-5)


def test_a_pooler_without_weights_is_never_used(tmp_path):
    vit(tmp_path)  # saved with a classifier, and without a pooler
    handler = load(tmp_path)
    assert handler.pooling == "cls"
    [reply] = handler.answer([Request.of(base64_of(FILES[0]))])
    [found] = outputs_by_hand(tmp_path, FILES[:1])
    assert json.loads(reply.body)["embedding"] == pytest.approx(found.last_hidden_state[0, 0].tolist(), abs=1e-5)
    with pytest.raises(LoadError, match="no pooler with weights"):
        load(tmp_path, handler={"pooling": "pooler"})


def test_what_a_model_has_not_is_refused(folders):
    with pytest.raises(LoadError, match=r"handler\.pooling: cls: this model has no tokens"):
        load(folders["resnet"], handler={"pooling": "cls"})
    with pytest.raises(LoadError, match="pooling"):
        load(folders["vit"], handler={"pooling": "median"})


def test_a_folder_that_lacks_weights_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    vit(tmp_path, "ViTModel")
    weights = load_file(tmp_path / "model.safetensors")
    dropped = [name for name in weights if not name.startswith("layernorm")]
    save_file({name: weights[name] for name in dropped}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LoadError, match="no weights for layernorm"):
        load(tmp_path)


def test_the_description(folders):
    [reply] = load(folders["vit"]).answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert (told["task"], told["pooling"], told["normalize"]) == ("image-embedding", "pooler", False)
