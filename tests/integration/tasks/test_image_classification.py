"""image-classification against transformers' pipeline on the same folder, and PyTorch models by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.tiny_images import CLASSES, processor_of, resnet, vit
from tests.varied import answers_in_batches
from tests.varied_images import FILES, base64_of, encoded, opened, picture
from tsbatch.errors import LoadError
from tsbatch.protocol.request import Request
from tsbatch.tasks.image_classification import ImageClassificationHandler
from tsbatch.worker.context import ModelContext

KINDS = {"vit": vit, "resnet": resnet}
REQUESTS = [{"inputs": base64_of(data), "parameters": {"top_k": None}} for data in FILES]


def load(folder, *, manifest=None, handler=None, batch_size=32, **settings):
    loaded = ImageClassificationHandler()
    config = {"tsbatch": settings, **({"handler": handler} if handler else {})}
    loaded.load(ModelContext(model_dir=folder, batch_size=batch_size, manifest=manifest or {}, config=config))
    return loaded


def ask(handler, bodies):
    replies = handler.answer([Request.of(body) for body in bodies])
    return [(reply.status, json.loads(reply.body)) for reply in replies]


def pipeline_of(folder):
    from transformers import AutoModelForImageClassification, pipeline

    model = AutoModelForImageClassification.from_pretrained(folder)
    return pipeline("image-classification", model=model, image_processor=processor_of(folder), device="cpu")


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    KINDS[request.param](folder)
    return folder


@pytest.fixture(scope="module")
def handler(folder):
    return load(folder)


@pytest.fixture(scope="module")
def expected(folder):
    pipe = pipeline_of(folder)
    return [pipe(opened(data), top_k=len(CLASSES)) for data in FILES]


def test_as_the_pipeline_alone_and_in_mixed_batches(handler, expected, record_property):
    assert min(best["score"] - second["score"] for best, second, *_ in expected) > 1e-2
    assert len({ranked[0]["label"] for ranked in expected}) > 2, "the answers differ"
    worst = 0.0
    for place, answer in answers_in_batches(handler, REQUESTS):
        assert answer[0]["label"] == expected[place][0]["label"]
        scores = {entry["label"]: entry["score"] for entry in answer}
        worst = max(worst, *(abs(scores[entry["label"]] - entry["score"]) for entry in expected[place]))
    assert worst <= 1e-4
    record_property("worst", worst)


def test_each_request_has_its_own_parameters_in_one_pass(handler, expected):
    [data] = FILES[:1]
    wishes = [{}, {"top_k": 2}, {"top_k": 0}, {"top_k": None, "function_to_apply": "none"}]
    bodies = [{"inputs": base64_of(data), "parameters": wish} for wish in wishes]
    record = handler.run_batch([Request.of(body, index=place) for place, body in enumerate(bodies)], Nowhere())
    assert record.forward_passes == 1
    (_, five), (_, two), (_, best), (_, logits) = ask(handler, bodies)
    assert [len(five), len(two), len(logits)] == [5, 2, len(CLASSES)]
    assert same([best], five[:1])
    assert same(two, five[:2])
    assert sum(entry["score"] for entry in logits) != pytest.approx(1, abs=1e-2)


class Nowhere:
    def send(self, index, reply):
        pass


def test_every_way_to_send_an_image(handler):
    data = encoded(picture(7), "PNG")
    text = base64_of(data)
    ways = [
        Request(fields={"body": data}, content_types={"body": "image/png"}),
        Request(fields={"body": data}, content_types={"body": "application/octet-stream"}),
        Request(fields={"data": data}),
        Request(fields={"file": data}, content_types={"file": "image/png"}),
        Request(fields={"data": data, "top_k": b"5"}),
        Request.of({"inputs": text}),
        Request.of({"inputs": f"data:image/png;base64,{text}"}),
        Request.of({"inputs": {"b64": text}}),
        Request.of({"b64": text}),
        Request.of(text),
    ]
    bodies = [json.loads(reply.body) for reply in handler.answer(ways)]
    assert all(same(body, bodies[0]) for body in bodies)
    [(_, listed)] = ask(handler, [{"inputs": [text, base64_of(FILES[0])]}])
    assert same(listed[0], bodies[0])
    [(_, kserve)] = ask(handler, [{"instances": [{"b64": text}]}])
    assert same(kserve["predictions"][0], bodies[0])


def same(one, other):
    """Whether two answers differ by no more than the batch they were computed in."""
    return [entry["label"] for entry in one] == [entry["label"] for entry in other] and all(
        abs(a["score"] - b["score"]) <= 1e-5 for a, b in zip(one, other, strict=True)
    )


def test_a_broken_image_hurts_nobody_else(handler):
    good = base64_of(FILES[0])
    broken = {base64_of(encoded(picture(0), "PNG")[:99]): 422, base64_of(b"text"): 415, "": 422, "%": 400}
    answers = ask(handler, [good, *broken, good, {"inputs": good, "parameters": {"topk": 1}}])
    assert [status for status, _ in answers] == [200, *broken.values(), 200, 422]
    assert same(answers[0][1], answers[-2][1])


def test_the_limit_of_pixels_is_a_setting(folder):
    handler = load(folder, limits={"image_pixels": 320 * 240})
    bodies = [base64_of(encoded(picture(0, *size), "PNG")) for size in ((240, 320), (241, 320), (32, 32))]
    assert [status for status, _ in ask(handler, bodies)] == [200, 413, 200]


def test_the_description(handler):
    [reply] = handler.answer([Request.of(None, kind="describe")])
    told = json.loads(reply.body)
    assert (told["task"], told["labels"]) == ("image-classification", CLASSES)
    assert {"top_k", "function_to_apply", "target", "n_steps", "attributions", "grid"} == set(told["parameters"])
    assert told["input"]["contentMediaType"] == "image/*"


def test_one_thread_and_several_give_the_same(folder):
    bodies = [{"inputs": base64_of(data)} for data in FILES[:12]]
    one, three = ask(load(folder, threads=1), bodies), ask(load(folder, threads=3), bodies)
    assert all(same(alone, together) for (_, alone), (_, together) in zip(one, three, strict=True))


def test_half_precision_weights(tmp_path):
    vit(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert "bfloat16" in (config.get("dtype"), config.get("torch_dtype"))
    assert [status for status, _ in ask(load(tmp_path), [base64_of(FILES[0])])] == [200]


def test_a_folder_without_a_head_is_refused(tmp_path):
    vit(tmp_path, "ViTModel")
    with pytest.raises(LoadError, match="classifier"):
        load(tmp_path)


def test_labels_of_the_archive_come_first(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "index_to_name.json").write_text(json.dumps([f"class {index}" for index in range(len(CLASSES))]))
    assert load(tmp_path).labels() == [f"class {index}" for index in range(len(CLASSES))]


# ---- a PyTorch model with a preprocessing file ----------------------------------------------------------------

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 5, stride=3)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, pixels):
        return self.head(self.conv(pixels).relu().mean((2, 3))) * 20
"""
STEPS = {"resize": 40, "crop": 32, "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}
NAMES = ["north", "east", "south", "west"]


@pytest.fixture(scope="module")
def net():
    space = {}
    exec(NET, space)
    torch.manual_seed(3)
    return space["Net"]().eval()


def save(net, folder, kind):
    """The model in one of the kinds that are served; the manifest's section."""
    example = torch.rand(2, 3, 32, 32)
    (folder / "preprocessing.json").write_text(json.dumps(STEPS))
    (folder / "index_to_name.json").write_text(json.dumps(dict(enumerate(NAMES))))
    if kind == "weights":
        from safetensors.torch import save_file

        (folder / "net.py").write_text(NET)
        save_file(net.state_dict(), folder / "net.safetensors")
        return {"modelFile": "net.py", "serializedFile": "net.safetensors"}
    if kind == "torchscript":
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(net, example).save(folder / "net.pt")
        return {"serializedFile": "net.pt"}
    rows = torch.export.Dim("rows")
    torch.export.save(torch.export.export(net, (example,), dynamic_shapes=({0: rows},)), folder / "net.pt2")
    return {"serializedFile": "net.pt2"}


def probabilities(net, data):
    """By hand, for an image that needs no care."""
    image = opened(data).convert("RGB")
    short = min(image.size)
    image = image.resize((int(40 * image.width / short), int(40 * image.height / short)), 2)
    left, top = round((image.width - 32) / 2), round((image.height - 32) / 2)
    values = np.asarray(image.crop((left, top, left + 32, top + 32)), dtype=np.float32) / 255
    pixels = (torch.from_numpy(values) - torch.tensor(STEPS["mean"])) / torch.tensor(STEPS["std"])
    with torch.no_grad():
        return net(pixels.permute(2, 0, 1)[None])[0].softmax(-1).numpy()


@pytest.mark.parametrize("kind", ["weights", "torchscript", "exported"])
def test_a_pytorch_model_as_by_hand(tmp_path, net, kind):
    handler = load(tmp_path, manifest=save(net, tmp_path, kind))
    assert handler.labels() == NAMES
    files = [encoded(picture(seed, *size), "PNG") for seed, size in enumerate([(50, 70), (70, 50), (33, 90), (40, 40)])]
    for data, (status, answer) in zip(files, ask(handler, [base64_of(data) for data in files]), strict=True):
        assert status == 200
        scores = dict(zip(NAMES, probabilities(net, data).tolist(), strict=True))
        assert {entry["label"]: entry["score"] for entry in answer} == pytest.approx(scores, abs=1e-5)
        assert answer[0]["label"] == max(scores, key=scores.get)


def test_options_of_the_archive(tmp_path, net):
    manifest = save(net, tmp_path, "weights")
    (tmp_path / "preprocessing.json").unlink()
    with pytest.raises(LoadError, match=r"preprocessing\.json: not in the archive"):
        load(tmp_path, manifest=manifest)
    handler = load(tmp_path, manifest=manifest, handler={"preprocessing": STEPS, "function_to_apply": "sigmoid"})
    [(_, answer)] = ask(handler, [base64_of(FILES[0])])
    assert sum(entry["score"] for entry in answer) != pytest.approx(1, abs=1e-3)


def test_a_model_that_gives_no_logits_is_refused(tmp_path, net):
    manifest = save(net, tmp_path, "weights")
    (tmp_path / "net.py").write_text(NET.replace(".mean((2, 3)))", ".mean((2, 3)))[:, None]"))
    with pytest.raises(LoadError, match=r"shape \(1, 1, 4\) for one image"):
        load(tmp_path, manifest=manifest)
    (tmp_path / "net.py").write_text(NET.replace("return", "return pixels,"))
    with pytest.raises(LoadError, match="tuple for one image"):
        load(tmp_path, manifest=manifest)
