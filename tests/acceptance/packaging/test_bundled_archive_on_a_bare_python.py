"""An archive with ``--bundle`` runs where tsbatch and what it needs are not installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.bare_python import UNDECLARED, has, python_with
from tests.acceptance.support import model_folder
from tests.e2e.support import post
from tsbatch.packaging.builder import package

PLAIN = """
import torch
from tsbatch import BatchHandler


class Plain(BatchHandler):
    item_ndim = 1

    def load_model(self):
        return self.load_weights(torch.nn.Linear(4, 2), "weights.safetensors")

    def postprocess(self, outputs, items):
        import orjson, pydantic, tsbatch
        return [[row, tsbatch.__file__, orjson.__file__, pydantic.__file__] for row in outputs.tolist()]
"""


@pytest.fixture(scope="module")
def torch_and_torchserve(tmp_path_factory) -> Path:
    python = python_with(tmp_path_factory.mktemp("bare") / "venv", "torch", "torchserve", *UNDECLARED)
    assert has(python, "torch")
    assert has(python, "ts")
    assert not any(has(python, module) for module in ("tsbatch", "orjson", "pydantic", "numpy", "safetensors"))
    return python


@pytest.fixture(scope="module")
def and_transformers(tmp_path_factory) -> Path:
    python = python_with(tmp_path_factory.mktemp("bare") / "venv", "torch", "torchserve", "transformers", *UNDECLARED)
    assert has(python, "transformers")
    assert not any(has(python, module) for module in ("tsbatch", "orjson"))
    return python


def plain(folder: Path, **options) -> Path:
    import torch
    from safetensors.torch import save_file

    (folder / "model").mkdir()
    torch.manual_seed(0)
    save_file(torch.nn.Linear(4, 2).state_dict(), folder / "model" / "weights.safetensors")
    (folder / "plain.py").write_text(PLAIN)
    return package(
        name="plain", handler=folder / "plain.py", model_dir=folder / "model", output_dir=folder / "store", **options
    )


def test_an_own_handler_with_torch_and_torchserve_alone(
    server_factory, tmp_path, torch_and_torchserve, record_property
):
    archive = plain(tmp_path, bundle=True)
    with server_factory(models=[archive], properties={"python": str(torch_and_torchserve)}) as server:
        answer = post(server, "plain", {"inputs": [1.0, 2.0, 3.0, 4.0]})
    assert answer.status == 200, answer.body
    row, *files = answer.json()
    import torch

    torch.manual_seed(0)
    assert row == pytest.approx(torch.nn.Linear(4, 2)(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist(), abs=1e-6)
    assert all("/models/" in file for file in files), "from the unpacked archive"
    record_property("bundle_own_handler", f"{archive.stat().st_size / 1e6:.1f} MB")


def test_a_task_with_transformers_beside(server_factory, tmp_path, and_transformers, record_property):
    archive = package(
        name="embed", task="text-embedding", model_dir=model_folder(), output_dir=tmp_path, form="folder", bundle=True
    )
    with server_factory(models=[archive], properties={"python": str(and_transformers)}) as server:
        answer = post(server, "embed", {"inputs": "a sentence"})
    assert answer.status == 200, answer.body
    assert len(answer.json()["embedding"]) == 384
    about = json.loads((archive / "MAR-INF" / "tsbatch.json").read_text())["bundle"]
    record_property(
        "bundle_text_embedding", ", ".join(f"{name} {version}" for name, version in about["packages"].items())
    )


def test_without_a_bundle_it_does_not_run(server_factory, tmp_path, torch_and_torchserve):
    """So the others show something."""
    with pytest.raises(Exception, match="tsbatch"):
        server_factory(models=[plain(tmp_path)], properties={"python": str(torch_and_torchserve)})


def test_a_bundle_for_another_python_says_so(server_factory, tmp_path, torch_and_torchserve):
    archive = plain(tmp_path, bundle=True, form="folder")
    made_for = archive / "tsbatch" / "_bundled_for.py"
    made_for.write_text(made_for.read_text().replace("cpython-3.", "cpython-2."))
    with pytest.raises(Exception, match=r"contains tsbatch for cpython-2\.\d+ .*but this worker is cpython-3"):
        server_factory(models=[archive], properties={"python": str(torch_and_torchserve)})
