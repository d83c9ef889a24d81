"""Names, what an engine needs, how the model is called."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tsbatch.errors import LoadError, SettingsError
from tsbatch.models import compiled_engines, engines
from tsbatch.models.engines import Engine, Source, check_engine, engine_names, find_engine, start_engine, wanted_engine
from tsbatch.models.export_wrappers import by_name
from tsbatch.models.exported_engines import OnnxRuntime, OpenVino
from tsbatch.settings import Settings

CPU = torch.device("cpu")


class Model(torch.nn.Module):
    """Stands in for a transformers model: named tensors in, something with items() out."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, ids):
        return {"last_hidden_state": self.linear(ids), "nothing": None}


def source(**options):
    return Source(Model().requires_grad_(False), {"ids": torch.ones(3, 4)}, **{"folder": None, **options})


def test_every_own_engine_is_found_by_its_name():
    assert engine_names()[:6] == ["eager", "compile", "torchscript", "export", "onnxruntime", "openvino"]
    assert [find_engine(name).name for name in engine_names()[:6]] == engine_names()[:6]
    assert [name for name in engine_names() if find_engine(name).packs] == ["eager"]
    assert [name for name in engine_names() if find_engine(name).exports] == ["onnxruntime", "openvino"]


@pytest.mark.parametrize(
    "name, said", [("eagre", "did you mean 'eager'"), ("zzz", "known engines: eager, compile, torchscript")]
)
def test_a_wrong_name_is_an_error_that_helps(name, said):
    with pytest.raises(SettingsError, match=said):
        find_engine(name)


def test_an_engine_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(OnnxRuntime, "needs", ("not_there_at_all",))
    monkeypatch.setattr(OpenVino, "exports_with", ("neither_there",))
    with pytest.raises(LoadError, match=r"needs not_there_at_all: pip install 'tsbatch\[onnx\]'"):
        check_engine(OnnxRuntime(), "float32", CPU)
    with pytest.raises(LoadError, match=r"needs neither_there: pip install 'tsbatch\[openvino\]'"):
        check_engine(OpenVino(), "float32", CPU, to_export=True)
    check_engine(OpenVino(), "float32", CPU)


def test_compile_needs_a_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(LoadError, match="C\\+\\+ compiler and there is no no-such-compiler: install one"):
        check_engine(compiled_engines.Compile(), "float32", CPU)


@pytest.mark.parametrize(
    "name, dtype, device, said",
    [
        ("openvino", "bfloat16", "cpu", "openvino has no bfloat16; expected auto or one of: float32"),
        ("onnxruntime", "auto", "cuda:0", "runs on the CPU alone and the device is cuda:0"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(name, dtype, device, said):
    with pytest.raises(SettingsError, match=said):
        check_engine(find_engine(name), dtype, torch.device(device))


def test_a_handler_without_engines_takes_the_defaults_alone():
    assert wanted_engine(Settings(), CPU, any_engine=False).name == "eager"
    for settings in (Settings(engine="compile"), Settings(dtype="float16")):
        with pytest.raises(SettingsError, match="runs its model as it is"):
            wanted_engine(settings, CPU, any_engine=False)


def test_the_example_says_its_rows():
    assert source().rows == 3


@pytest.mark.parametrize("dtype", engines.FLOATS)
def test_the_model_is_cast_before_the_engine_starts(dtype):
    given = source(dtype=dtype)
    start_engine(find_engine("eager"), given)
    assert given.model.linear.weight.dtype == engines.FLOATS[dtype]


def test_int8_replaces_linear_layers_and_stays_near():
    given = source(dtype="int8")
    before = given.model(**given.batch)["last_hidden_state"]
    start_engine(find_engine("eager"), given)
    assert "Quantized" in repr(given.model)
    assert torch.allclose(given.model(**given.batch)["last_hidden_state"], before, atol=0.05)


def test_what_the_engine_gives_stands_for_the_forward_pass_until_it_is_taken_back():
    class Constant(Engine):
        name = "constant"

        def start(self, source):
            return lambda **tensors: "constant"

    given = source()
    start_engine(Constant(), given)
    assert given.model(ids=torch.ones(1, 4)) == "constant"
    del given.model.forward
    assert set(given.model(ids=torch.ones(1, 4))) == {"last_hidden_state", "nothing"}


def test_an_engine_that_fails_is_one_line_with_the_first_cause():
    class Failing(Engine):
        name = "failing"

        def start(self, source):
            raise ValueError("advice\nmore advice") from KeyError("the cause")

    with pytest.raises(LoadError, match=r"^the engine failing cannot run this model: KeyError: 'the cause'$"):
        start_engine(Failing(), source())


def test_tensors_go_in_and_come_out_by_name():
    forward = by_name(lambda *tensors: [tensors[0] - tensors[1]], ["a", "b"], ["difference"])
    assert forward(b=1, a=3, c=None) == SimpleNamespace(difference=2)
    with pytest.raises(ValueError, match="takes a, b, and was called with a, c"):
        forward(a=1, c=2)


def test_a_file_that_was_not_exported_is_named(tmp_path):
    with pytest.raises(LoadError, match=r"model.onnx: not in the archive; pack it with: tsbatch package --engine onnx"):
        start_engine(OnnxRuntime(), source(folder=tmp_path))


def test_the_cache_of_compiled_code_is_private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = compiled_engines._private_cache()
    assert folder == tmp_path / "tsbatch" / "compiled"
    assert folder.stat().st_mode & 0o077 == 0
