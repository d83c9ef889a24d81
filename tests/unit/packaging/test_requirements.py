from __future__ import annotations

import json

import pytest
import yaml

from tsbatch._version import __version__
from tsbatch.archive.model_config import ModelConfig
from tsbatch.errors import UsageError
from tsbatch.packaging.builder import plan


@pytest.fixture
def handler(tmp_path):
    path = tmp_path / "my_handler.py"
    path.write_text("class MyHandler:\n    pass\n")
    return path


def requirements_of(archive):
    manifest = json.loads(archive.files["MAR-INF/MANIFEST.json"])["model"]
    return manifest.get("requirementsFile"), yaml.safe_load(archive.files["model-config.yaml"]).get("useVenv")


def test_nothing_without_being_asked(handler):
    archive = plan(name="m", handler=handler)
    assert requirements_of(archive) == (None, None)
    assert "requirements.txt" not in archive.files


def test_a_file_of_the_user_s(handler, tmp_path):
    (tmp_path / "needs.txt").write_text("nltk\n")
    archive = plan(name="m", handler=handler, requirements=tmp_path / "needs.txt")
    assert requirements_of(archive) == ("needs.txt", None)
    with pytest.raises(UsageError, match=r"--requirements .*no such file"):
        plan(name="m", handler=handler, requirements=tmp_path / "none.txt")


def test_auto_is_this_tsbatch_in_an_environment_of_its_own(handler):
    archive = plan(name="m", handler=handler, requirements="auto")
    assert requirements_of(archive) == ("requirements.txt", True)
    assert archive.files["requirements.txt"] == f"tsbatch=={__version__}\n".encode()
    archive = plan(name="m", handler=handler, requirements="auto", config=ModelConfig(base={"useVenv": False}))
    assert requirements_of(archive)[1] is False, "what the user says stays"


def test_auto_names_the_extras(tmp_path, handler):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    config = ModelConfig(base={"tsbatch": {"engine": "onnxruntime"}})
    archive = plan(name="m", task="text-embedding", model=folder, requirements="auto", config=config)
    assert archive.files["requirements.txt"] == f"tsbatch[transformers,onnx]=={__version__}\n".encode()
    (folder / "requirements.txt").touch()
    with pytest.raises(UsageError, match="is in the archive already"):
        plan(name="m", task="text-embedding", model=folder, requirements="auto")
