"""Loading: each kind of file, wrong ones in one line with a remedy, and the model locked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tsbatch.errors import LoadError
from tsbatch.models.loading import load_any, load_weights, lock

CPU = torch.device("cpu")
X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 3)

    def forward(self, x):
        return self.first(x)
"""


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(2, 3)

    def forward(self, x):
        return self.first(x)


@pytest.fixture(autouse=True)
def imports():
    """What load_any imports is forgotten again."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name in ("net", "pair", "none", "broken"):
            del sys.modules[name]


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture(params=["w.safetensors", "w.pt", "w.pth", "w.bin"])
def weights(request, net, tmp_path):
    path = tmp_path / request.param
    if path.suffix == ".safetensors":
        save_file(net.state_dict(), path)
    else:
        torch.save(net.state_dict(), path)
    return path


def failure(call):
    with pytest.raises(LoadError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message, "one line"
    assert "\x1b" not in message, "no colours"
    return message


def test_weights_of_every_kind(net, weights):
    assert torch.equal(load_weights(Net(), weights, CPU)(X), net(X))


def test_weights_in_the_format_from_before_torch_1_6(net, tmp_path):
    torch.save(net.state_dict(), tmp_path / "w.pth", _use_new_zipfile_serialization=False)
    assert torch.equal(load_weights(Net(), tmp_path / "w.pth", CPU)(X), net(X))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_are_memory_mapped(tmp_path, suffix):
    big = torch.nn.Linear(2048, 2048)
    path = tmp_path / f"w{suffix}"
    save_file(big.state_dict(), path) if suffix == ".safetensors" else torch.save(big.state_dict(), path)
    loaded = load_weights(torch.nn.Linear(2048, 2048), path, CPU)
    address = loaded.weight.data_ptr()
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            start, stop = (int(number, 16) for number in line.split()[0].split("-"))
            if start <= address < stop:
                assert path.name in line, "the weights lie in memory of their own"
                return
    raise AssertionError("the weights lie nowhere")


def test_a_class_and_its_weights(net, weights, tmp_path):
    (tmp_path / "net.py").write_text(NET)
    loaded = load_any(tmp_path, {"modelFile": "net.py", "serializedFile": weights.name}, CPU)
    assert type(loaded).__name__ == "Net"
    assert torch.equal(loaded(X), net(X))


def test_a_class_alone(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    assert load_any(tmp_path, {"modelFile": "net.py"}, CPU)(X).shape == (2, 3)


def test_a_class_is_found_by_its_path_and_not_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text(NET)
    monkeypatch.setitem(sys.modules, "json", sys.modules["json"])
    assert type(load_any(tmp_path, {"modelFile": "json.py"}, CPU)).__name__ == "Net"


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript(net, tmp_path, named):
    torch.jit.script(net).save(str(tmp_path / "m.pt"))
    loaded = load_any(tmp_path, {"serializedFile": "m.pt"} if named else {}, CPU)
    lock(loaded)
    assert torch.equal(loaded(X), net(X))
    assert not loaded(X).requires_grad


def export(net, path):
    rows = {0: torch.export.Dim("rows")}
    torch.export.save(torch.export.export(net, (X,), dynamic_shapes=(rows,)), path)


@pytest.mark.parametrize("named", [True, False])
def test_an_exported_program_with_any_number_of_rows(net, tmp_path, named):
    export(net, tmp_path / "m.pt2")
    loaded = load_any(tmp_path, {"serializedFile": "m.pt2"} if named else {}, CPU)
    lock(loaded)
    five = torch.cat([X, X, X[:1]])
    torch.testing.assert_close(loaded(five), net(five))
    assert not loaded(five).requires_grad


def test_missing_weights_list_what_is_there(tmp_path):
    (tmp_path / "other.pt").touch()
    assert "w.pt: no such file in the archive; it has: other.pt" in failure(
        lambda: load_weights(Net(), tmp_path / "w.pt", CPU)
    )
    assert "it has: nothing" in failure(lambda: load_weights(Net(), tmp_path / "sub/w.pt", CPU))


@pytest.mark.parametrize("file", ["m.pt", "m.pt2", "w.safetensors"])
def test_a_file_the_manifest_names_and_nobody_packed(tmp_path, file):
    assert f"{file}: no such file" in failure(lambda: load_any(tmp_path, {"serializedFile": file}, CPU))


def test_a_module_file_that_nobody_packed(tmp_path):
    assert "net.py: no such file" in failure(lambda: load_any(tmp_path, {"modelFile": "net.py"}, CPU))


def test_a_kind_that_holds_no_weights(tmp_path):
    (tmp_path / "w.onnx").touch()
    assert ".safetensors, .pt, .pth, .bin" in failure(lambda: load_weights(Net(), tmp_path / "w.onnx", CPU))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".bin"])
@pytest.mark.parametrize("content", [b"", b"garbage that is no file of weights" * 10])
def test_corrupt_weights_say_how_to_save_them(tmp_path, suffix, content):
    (tmp_path / f"w{suffix}").write_bytes(content)
    message = failure(lambda: load_weights(Net(), tmp_path / f"w{suffix}", CPU))
    assert f"w{suffix}: " in message
    assert "save_file(model.state_dict()" in message


def test_cut_off_weights(net, tmp_path):
    for suffix, save in ((".safetensors", save_file), (".pt", torch.save)):
        path = tmp_path / f"w{suffix}"
        save(net.state_dict(), path)
        path.write_bytes(path.read_bytes()[:-40])
        assert "cannot be read as weights" in failure(lambda path=path: load_weights(Net(), path, CPU))


class Trap:
    def __reduce__(self):
        return (os.mkdir, ("sprung",))


def test_a_pickled_module_is_refused_without_running_it(net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(net, tmp_path / "whole.pth")
    torch.save({"first.weight": Trap()}, tmp_path / "trap.pth")
    for file in ("whole.pth", "trap.pth"):
        message = failure(lambda file=file: load_weights(Net(), tmp_path / file, CPU))
        assert "holds more than weights" in message
        assert "state_dict()" in message
    assert not (tmp_path / "sprung").exists()


def test_weights_of_another_module(tmp_path):
    save_file({"first.weight": torch.ones(3, 2)}, tmp_path / "few.safetensors")
    message = failure(lambda: load_weights(Net(), tmp_path / "few.safetensors", CPU))
    assert "few.safetensors: does not fit Net" in message
    assert "first.bias" in message
    save_file({"first.weight": torch.ones(9, 9), "first.bias": torch.ones(3)}, tmp_path / "large.safetensors")
    assert "size mismatch" in failure(lambda: load_weights(Net(), tmp_path / "large.safetensors", CPU))
    torch.save({"state_dict": {"a": torch.ones(1)}, "epoch": 3}, tmp_path / "checkpoint.pt")
    assert "does not fit Net" in failure(lambda: load_weights(Net(), tmp_path / "checkpoint.pt", CPU))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_state_dict_where_a_program_was_expected(net, tmp_path):
    torch.save(net.state_dict(), tmp_path / "w.pt")
    message = failure(lambda: load_any(tmp_path, {}, CPU))
    assert "not TorchScript" in message
    assert 'return self.load_weights(YourModule(), "w.pt")' in message


@pytest.mark.filterwarnings("ignore")
def test_what_is_no_exported_program(tmp_path, caplog):
    (tmp_path / "m.pt2").write_bytes(b"no")
    assert "m.pt2: not an exported program" in failure(lambda: load_any(tmp_path, {}, CPU))


def test_weights_without_their_class(net, tmp_path):
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    message = failure(lambda: load_any(tmp_path, {"serializedFile": "w.safetensors"}, CPU))
    assert "modelFile" in message
    assert "self.load_weights" in message


def test_nothing_and_too_much_to_choose_from(tmp_path):
    assert "no TorchScript" in failure(lambda: load_any(tmp_path, {}, CPU))
    for name in ("a.pt", "b.pt2"):
        (tmp_path / name).touch()
    message = failure(lambda: load_any(tmp_path, {}, CPU))
    assert "more than one" in message
    assert "a.pt, b.pt2" in message


@pytest.mark.parametrize(
    "name, source, found",
    [("none", "import torch", "found none"), ("pair", NET + NET.replace("Net", "Other"), "found Net, Other")],
)
def test_a_module_file_without_the_one_class(tmp_path, name, source, found):
    (tmp_path / f"{name}.py").write_text(source)
    assert found in failure(lambda: load_any(tmp_path, {"modelFile": f"{name}.py"}, CPU))


def test_a_module_file_that_is_no_python(tmp_path):
    (tmp_path / "net.txt").write_text(NET)
    assert "not a Python file" in failure(lambda: load_any(tmp_path, {"modelFile": "net.txt"}, CPU))


def test_locked_is_evaluation_without_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    assert model.training
    lock(model)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("model", [None, object(), len])
def test_what_is_no_module_needs_no_lock(model):
    lock(model)
