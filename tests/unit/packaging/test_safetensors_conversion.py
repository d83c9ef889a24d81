"""Pickled weights into safetensors, or refused."""

from __future__ import annotations

import hashlib
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file

from tsbatch.errors import UsageError
from tsbatch.packaging.builder import plan
from tsbatch.packaging.safetensors_conversion import converted, is_pickle, to_safetensors

OURS = "from tsbatch import BatchHandler\n\n\nclass MyHandler(BatchHandler):\n    pass\n"
OTHER = "from ts.torch_handler.base_handler import BaseHandler\n\n\nclass MyHandler(BaseHandler):\n    pass\n"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.outer = torch.nn.Linear(3, 3)
        self.outer.weight = self.inner.weight
        self.register_buffer("count", torch.tensor(7))


def state():
    """Everything that a state dict may hold: tied, transposed, empty, scalar, of every type, with NaN."""
    torch.manual_seed(0)
    whole = torch.randn(4, 5)
    return {
        **Net().state_dict(),
        "turned": torch.randn(3, 4).T,
        "half of": whole[:2],
        "other half": whole[2:],
        "empty": torch.zeros(0, 3),
        "nan": torch.tensor([float("nan"), -0.0]),
        "yes": torch.tensor([True, False]),
        "brain": torch.randn(3).to(torch.bfloat16),
        "bytes": torch.arange(5, dtype=torch.uint8),
    }


def same(one, other):
    assert list(one) == sorted(other)
    for name, tensor in other.items():
        assert one[name].dtype == tensor.dtype
        assert one[name].shape == tensor.shape
        assert torch.equal(one[name].nan_to_num(9), tensor.nan_to_num(9)), name


@pytest.mark.parametrize("old_file_format", [False, True])
def test_every_tensor_comes_out_the_same(tmp_path, old_file_format):
    torch.save(state(), tmp_path / "w.pt", _use_new_zipfile_serialization=not old_file_format)
    to_safetensors(tmp_path / "w.pt", tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    same({name: found[name] for name in sorted(found)}, state())


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict"])
def test_a_checkpoint_gives_its_state_dict(tmp_path, key):
    torch.save({"epoch": 3, key: state()}, tmp_path / "w.ckpt")
    to_safetensors(tmp_path / "w.ckpt", tmp_path / "w.safetensors")
    assert load_file(tmp_path / "w.safetensors").keys() == state().keys()


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    "content, reason",
    [
        (Net(), "more than weights"),
        (Evil(), "more than weights"),
        ({"weights": [1, 2], "epoch": 3}, "found weights, epoch"),
        ([torch.zeros(1)], "found list"),
        ({"sparse": torch.eye(3).to_sparse()}, "SparseTensorImpl"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*sparse.*")
def test_what_is_no_state_dict_is_refused(tmp_path, content, reason, capsys):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=reason) as caught:
        to_safetensors(tmp_path / "w.pt", tmp_path / "w.safetensors")
    assert "--allow-pickle" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capsys.readouterr().out == "", "nothing in it was run"


def test_broken_files_are_refused(tmp_path):
    torch.save(state(), tmp_path / "w.pt")
    (tmp_path / "w.pt").write_bytes((tmp_path / "w.pt").read_bytes()[:-200])
    with pytest.raises(UsageError, match=r"w\.pt: a pickle that cannot"):
        to_safetensors(tmp_path / "w.pt", tmp_path / "w.safetensors")


def test_a_conversion_that_went_wrong_is_not_used(tmp_path, monkeypatch):
    torch.save({"a": torch.ones(2)}, tmp_path / "w.pt")
    monkeypatch.setattr("safetensors.torch.load_file", lambda path: {"a": torch.zeros(2)})
    with pytest.raises(UsageError, match="a differs after the conversion"):
        to_safetensors(tmp_path / "w.pt", tmp_path / "w.safetensors")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_a_pickle(tmp_path):
    torch.save(state(), tmp_path / "state.pt")
    torch.save(state(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps([1]))
    torch.jit.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2)).save(tmp_path / "script.pt")
    (tmp_path / "words.bin").write_bytes(b"\x80 not one")
    (tmp_path / "empty.pt").touch()
    (tmp_path / "ascii.pt").write_bytes(pickle.dumps([1], protocol=0))
    (tmp_path / "two.bin").write_bytes(pickle.dumps([1]) + (tmp_path / "script.pt").read_bytes())
    (tmp_path / "cut.pt").write_bytes((tmp_path / "script.pt").read_bytes()[:-100])
    found = {path.name: is_pickle(path) for path in tmp_path.iterdir()}
    assert found == {
        "state.pt": True,
        "old.pt": True,
        "plain.pkl": True,
        "script.pt": False,
        "words.bin": False,
        "empty.pt": False,
        "ascii.pt": True,
        "two.bin": True,
        "cut.pt": True,
    }


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    torch.save(state(), folder / "net.pt")
    (folder / "labels.json").write_text("[]")
    return folder


def planned(tmp_path, model, source=OURS, **options):
    (tmp_path / "my_handler.py").write_text(source)
    return plan(name="m", handler=tmp_path / "my_handler.py", model=model, **options)


def test_an_archive_gets_safetensors_and_says_from_what(tmp_path, model):
    lines = []
    with converted(planned(tmp_path, model), on_progress=lines.append) as archive:
        assert "net.pt" not in archive.files
        assert load_file(archive.files["net.safetensors"]).keys() == state().keys()
        digest = hashlib.sha256((model / "net.pt").read_bytes()).hexdigest()
        assert archive.about["converted"] == {"net.safetensors": {"from": "net.pt", "sha256": digest}}
    assert lines == ["converting net.pt to safetensors"]
    assert not archive.files["net.safetensors"].exists(), "cleaned up"
    assert any("net.pt as net.safetensors" in note for note in archive.notes)


def test_the_manifest_names_the_new_file(tmp_path, model):
    with converted(planned(tmp_path, model / "net.pt")) as archive:
        assert json.loads(archive.files["MAR-INF/MANIFEST.json"])["model"]["serializedFile"] == "net.safetensors"


def test_a_handler_that_opens_the_file_itself_is_refused(tmp_path, model):
    with pytest.raises(UsageError, match=r"net\.pt: pickled.*--allow-pickle"), converted(
        planned(tmp_path, model, OTHER)
    ):  # fmt: skip
        pass


def test_a_handler_that_is_ours_through_a_module_of_its_own(tmp_path, model):
    (tmp_path / "base.py").write_text(OURS)
    own = "from base import MyHandler as Base\n\n\nclass Mine(Base):\n    pass\n"
    with converted(planned(tmp_path, model, own, extra=[tmp_path / "base.py"])) as archive:
        assert "net.safetensors" in archive.files


@pytest.mark.parametrize("source", [OURS, OTHER])
def test_allowed_pickles_stay_and_are_noted(tmp_path, model, source):
    with converted(planned(tmp_path, model, source), allow_pickle=True) as archive:
        assert archive.files["net.pt"] == model / "net.pt"
    assert any("can run code" in note and "net.pt" in note for note in archive.notes)


def test_no_pickles_no_change(tmp_path, model):
    (model / "net.pt").unlink()
    archive = planned(tmp_path, model, OTHER)
    with converted(archive) as same_archive:
        assert same_archive is archive


def test_a_pickle_beside_safetensors_of_its_name(tmp_path, model):
    (model / "net.safetensors").touch()
    with pytest.raises(UsageError, match=r"net\.pt and net\.safetensors would be the same file"), converted(
        planned(tmp_path, model)
    ):  # fmt: skip
        pass


def test_other_pickles_are_refused(tmp_path, model):
    (model / "words.pkl").write_bytes(pickle.dumps(["a"]))
    with pytest.raises(UsageError, match=r"words\.pkl: a pickle.*remove it"), converted(planned(tmp_path, model)):
        pass


def test_a_sharded_model_keeps_its_index(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    names = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    torch.save({"a": torch.ones(1)}, folder / names[0])
    torch.save({"b": torch.zeros(1)}, folder / names[1])
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": names[0], "b": names[1]}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    with converted(plan(name="m", task="text-embedding", model=folder)) as archive:
        found = json.loads(archive.files["model.safetensors.index.json"])
        assert found["weight_map"] == {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        }
        assert found["metadata"] == {"total_size": 8}
        assert set(found["weight_map"].values()) < archive.files.keys()
        assert not any("pytorch_model" in name for name in archive.files)
