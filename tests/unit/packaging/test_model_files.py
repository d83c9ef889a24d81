"""Your own models (single files, a class with its weights, ONNX graphs with theirs) and transformers folders."""

from __future__ import annotations

import json

import pytest

from tests.unit.archive.test_model_folder import make
from tsbatch.errors import UsageError
from tsbatch.packaging.builder import plan
from tsbatch.packaging.model_files import check_transformers

MODEL = "import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n"


@pytest.fixture
def handler(tmp_path):
    path = tmp_path / "my_handler.py"
    path.write_text("class MyHandler:\n    pass\n")
    return path


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


def section(archive):
    return json.loads(archive.files["MAR-INF/MANIFEST.json"])["model"]


def test_a_class_and_its_weights(tmp_path, handler, net):
    (tmp_path / "w.safetensors").touch()
    archive = plan(name="m", handler=handler, model=tmp_path / "w.safetensors", model_file=net)
    assert (section(archive)["modelFile"], section(archive)["serializedFile"]) == ("net.py", "w.safetensors")
    assert archive.files["net.py"] == net


def test_a_class_whose_weights_are_in_a_folder(tmp_path, handler, net):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "w.pth").touch()
    (folder / "deep").mkdir()
    (folder / "deep" / "x.pth").touch()
    assert section(plan(name="m", handler=handler, model=folder, model_file=net))["serializedFile"] == "w.pth"
    assert "serializedFile" not in section(plan(name="m", handler=handler, model=folder))
    (folder / "v.bin").touch()
    with pytest.raises(UsageError, match=r"expected one file of weights for --model-file, got v\.bin, w\.pth"):
        plan(name="m", handler=handler, model=folder, model_file=net)


def test_a_class_without_weights(handler, net):
    archive = plan(name="m", handler=handler, model_file=net)
    assert section(archive)["modelFile"] == "net.py"
    assert "serializedFile" not in section(archive)


@pytest.mark.parametrize(
    "name, source, message",
    [
        ("net.py", "x = 1\n", "defines no class"),
        ("net.py", MODEL + MODEL.replace("Net", "Other"), r"2 classes \(Net, Other\)"),
        ("net.py", "class", "line 1: not Python"),
        ("json.py", MODEL, "Python's own module"),
        ("service.py", MODEL, "TorchServe's own"),
        ("net.txt", MODEL, "must be called NAME.py"),
    ],
)
def test_model_files_that_a_worker_would_not_take(tmp_path, handler, name, source, message):
    (tmp_path / name).write_text(source)
    with pytest.raises(UsageError, match=rf"--model-file .*{message}"):
        plan(name="m", handler=handler, model_file=tmp_path / name)


def test_a_task_knows_its_class(net, tmp_path):
    with pytest.raises(UsageError, match="--task text-embedding knows its model's class"):
        plan(name="m", task="text-embedding", model=tmp_path, model_file=net)


def test_an_onnx_graph_comes_with_the_weights_it_names(tmp_path, handler):
    (tmp_path / "net.onnx").write_bytes(b"\x08\x08 location net.onnx.data and more")
    (tmp_path / "net.onnx.data").touch()
    (tmp_path / "net.other").touch()
    archive = plan(name="m", handler=handler, model=tmp_path / "net.onnx")
    assert section(archive)["serializedFile"] == "net.onnx"
    assert {"net.onnx", "net.onnx.data"} < archive.files.keys()
    assert "net.other" not in archive.files
    (tmp_path / "empty.onnx").touch()
    assert "empty.onnx" in plan(name="m", handler=handler, model=tmp_path / "empty.onnx").files


COMPLETE = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.mark.parametrize(
    "names, message",
    [
        (COMPLETE[1:], "no config.json; --task text-embedding needs a transformers folder"),
        (COMPLETE[::2], "no weights; expected model.safetensors"),
        (COMPLETE[:2], "no tokenizer; .*tokenizer.json"),
    ],
)
def test_what_is_missing_is_named(tmp_path, names, message):
    with pytest.raises(UsageError, match=message):
        check_transformers(tmp_path, make(tmp_path, *names), "text-embedding")


def test_a_complete_folder_passes(tmp_path):
    check_transformers(tmp_path, make(tmp_path, *COMPLETE), "text-embedding")


def test_an_old_sentence_transformers_folder_is_recognised(tmp_path):
    files = make(tmp_path, "modules.json", *(f"0_Transformer/{name}" for name in COMPLETE))
    with pytest.raises(UsageError, match="save the model once with sentence-transformers"):
        check_transformers(tmp_path, files, "text-embedding")


def test_missing_shards_are_named(tmp_path):
    files = make(tmp_path, "model-00001-of-00002.safetensors", "model.safetensors.index.json", *COMPLETE[::2])
    index = tmp_path / "model.safetensors.index.json"
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": shards}), encoding="utf-8")
    with pytest.raises(UsageError, match=r"missing: model-00002-of-00002.safetensors"):
        check_transformers(tmp_path, files, "text-embedding")
    index.write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match="not an index of weights"):
        check_transformers(tmp_path, files, "text-embedding")


def test_a_task_with_a_processor_needs_its_file(tmp_path):
    with pytest.raises(UsageError, match=r"no preprocessor_config\.json; --task object-detection needs it"):
        check_transformers(tmp_path, make(tmp_path, "config.json", "model.safetensors"), "object-detection")
    for name in ("preprocessor_config.json", "processor_config.json"):
        files = make(tmp_path, "config.json", "model.safetensors", name)
        check_transformers(tmp_path, files, "object-detection")


def test_a_task_on_any_model_takes_a_folder_without_transformers_files(tmp_path):
    check_transformers(tmp_path, make(tmp_path, "model.pt"), "tensor")
