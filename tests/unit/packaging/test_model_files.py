"""Own models: single files, a class with its weights, ONNX graphs with theirs."""

from __future__ import annotations

import json

import pytest

from tsbatch.errors import UsageError
from tsbatch.packaging.builder import plan

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
