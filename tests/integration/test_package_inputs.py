"""Models in every form, packed and loaded as a worker does: the answers are the model's own."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile

import pytest
import torch

from tests.tiny import save_encoder
from tsbatch import HandlerRunner, LoadError
from tsbatch.packaging.builder import package

HANDLER = """
from tsbatch import BatchHandler


class Plain(BatchHandler):
    item_ndim = 1

    def postprocess(self, outputs, items):
        return outputs.tolist()
"""

LOADS = (
    HANDLER
    + """
    def load_model(self):
        from net import Net
        return self.load_weights(Net(), "weights.pt")
"""
)

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.outer = torch.nn.Linear(4, 4)
        self.outer.weight = self.inner.weight

    def forward(self, rows):
        return self.outer(self.inner(rows).relu())
"""


def make_net():
    namespace = {"__name__": "net_of_the_test"}
    exec(NET, namespace)
    torch.manual_seed(0)
    return namespace["Net"]().eval()


def save_state_dict(net, folder):
    torch.save(net.state_dict(), folder / "weights.pt")
    return {"model_dir": folder / "weights.pt", "model_file": folder / "net.py"}


def save_named_by_the_handler(net, folder):
    torch.save(net.state_dict(), folder / "weights.pt")
    return {"model_dir": folder, "handler": folder / "plain.py"}


def save_safetensors(net, folder):
    from safetensors.torch import save_file

    save_file({name: tensor.clone() for name, tensor in net.state_dict().items()}, folder / "weights.safetensors")
    return {"model_dir": folder / "weights.safetensors", "model_file": folder / "net.py"}


def save_torchscript(net, folder):
    torch.jit.trace(net, torch.zeros(2, 4)).save(folder / "program.pt")
    return {"model_dir": folder / "program.pt"}


def save_exported(net, folder):
    shapes = ({0: torch.export.Dim("rows")},)
    torch.export.save(torch.export.export(net, (torch.zeros(2, 4),), dynamic_shapes=shapes), folder / "program.pt2")
    return {"model_dir": folder / "program.pt2"}


def save_onnx(net, folder):
    shapes = ({0: torch.export.Dim.DYNAMIC},)
    torch.onnx.export(
        net, (torch.zeros(2, 4),), folder / "net.onnx", dynamo=True, dynamic_shapes=shapes, external_data=True,
        verbose=False,
    )  # fmt: skip
    return {"model_dir": folder / "net.onnx"}


FORMS = [
    save_state_dict,
    save_named_by_the_handler,
    save_safetensors,
    save_torchscript,
    save_exported,
    save_onnx,
]


@pytest.mark.filterwarnings("ignore")  # exporters and TorchScript have much to say
@pytest.mark.parametrize("save", FORMS)
def test_every_form_answers_as_the_model_does(tmp_path, save):
    net, folder = make_net(), tmp_path / "source"
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "plain.py").write_text(LOADS if save is save_named_by_the_handler else HANDLER)
    options = {"handler": folder / "plain.py", **save(net, folder)}
    mar = package(name="m", output_dir=tmp_path, **options)
    with zipfile.ZipFile(mar) as archive:
        assert not any(name.endswith("weights.pt") for name in archive.namelist())
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    with HandlerRunner.from_mar(mar) as runner:
        answers = runner.predict([{"inputs": row} for row in rows.tolist()])
    found = torch.tensor([answer.json() for answer in answers])
    assert torch.allclose(found, net(rows), atol=1e-6), (found, net(rows))


def test_a_converted_encoder_answers_the_same(tmp_path):
    """Also with tensors that share their memory, as tied weights do."""
    original = save_encoder(tmp_path / "original")
    pickled = save_encoder(tmp_path / "pickled")
    from safetensors.torch import load_file

    state = load_file(pickled / "model.safetensors")
    state["embeddings.word_embeddings.weight"] = state["embeddings.word_embeddings.weight"].clone()
    state["cls.predictions.decoder.weight"] = state["embeddings.word_embeddings.weight"]
    torch.save(state, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    texts = ["a cat sat on the mat", "the dog ran away", "a"]
    answers = []
    for name, folder in (("one", original), ("other", pickled)):
        mar = package(name=name, task="text-embedding", model_dir=folder, output_dir=tmp_path)
        with HandlerRunner.from_mar(mar) as runner:
            answers.append([answer.json() for answer in runner.predict([{"inputs": text} for text in texts])])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("form", ["mar-compressed", "tar.gz", "folder"])
def test_every_format_runs_without_a_server(tmp_path, form):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "plain.py").write_text(HANDLER)
    options = save_safetensors(make_net(), folder)
    path = package(name="m", output_dir=tmp_path, handler=folder / "plain.py", form=form, **options)
    with HandlerRunner.from_mar(path) as runner:
        [answer] = runner.predict([{"inputs": [0.5, 1.0, 1.5, 2.0]}])
    assert torch.allclose(torch.tensor(answer.json()), make_net()(torch.tensor([0.5, 1.0, 1.5, 2.0])), atol=1e-6)


def add_link(archive):
    entry = tarfile.TarInfo("m/link")
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    archive.addfile(entry)


def add_escape(archive):
    archive.addfile(tarfile.TarInfo("m/../../evil"))


def add_absolute(archive):
    archive.addfile(tarfile.TarInfo("m//evil"))


def add_without_folder(archive):
    archive.addfile(tarfile.TarInfo("handler.py"))


@pytest.mark.parametrize(
    "damage, message",
    [
        (add_link, "is a link"),
        (add_escape, "outside"),
        (add_absolute, "outside"),
        (add_without_folder, "'handler.py' is not in a folder"),
        (None, "not a readable"),
    ],
)
def test_tars_that_must_not_be_unpacked(tmp_path, damage, message):
    path = tmp_path / "m.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        if damage:
            damage(archive)
        else:
            archive.addfile(tarfile.TarInfo("m/file"))
    if not damage:
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LoadError, match=message):
        HandlerRunner.from_mar(path)
    assert not (tmp_path.parent / "evil").exists()


BUNDLED = """
import json, sys
import tsbatch, orjson, pydantic
print(json.dumps([tsbatch.__file__, orjson.__file__, pydantic.__file__]))
"""


def test_a_bundle_is_what_the_worker_imports(tmp_path):
    (tmp_path / "plain.py").write_text(HANDLER)
    folder = package(name="m", handler=tmp_path / "plain.py", output_dir=tmp_path, form="folder", bundle=True)
    # -S: no site-packages at all; torch is not needed to import these.
    done = subprocess.run(
        [sys.executable, "-S", "-c", BUNDLED],
        env={"PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(file.startswith(str(folder)) for file in json.loads(done.stdout))


def test_a_bundle_runs_in_a_process_that_has_tsbatch_too(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    (folder / "plain.py").write_text(HANDLER)
    options = save_safetensors(make_net(), folder)
    mar = package(name="m", output_dir=tmp_path, handler=folder / "plain.py", bundle=True, **options)
    with HandlerRunner.from_mar(mar) as runner:
        [answer] = runner.predict([{"inputs": [1.5, 2.5, 3.5, 4.5]}])
    assert answer.status == 200
