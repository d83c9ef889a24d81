from __future__ import annotations

import ast
import json
import os
import subprocess
import sys

import pytest
import torch
import yaml
from safetensors.torch import load_file

from tsbatch.cli import package_commands
from tsbatch.cli.program import main
from tsbatch.errors import UsageError
from tsbatch.packaging.handler_files import check_handler
from tsbatch.packaging.starter_project import TEMPLATES, class_name, new_handler

FILES = [
    "README.md",
    "handler.py",
    "model/labels.json",
    "model/model-config.yaml",
    "model/net.py",
    "model/net.safetensors",
    "pytest.ini",
    "samples.jsonl",
    "tests/test_colours.py",
    "train.py",
]


@pytest.fixture
def made(tmp_path):
    new_handler(tmp_path / "my_handler")
    return tmp_path / "my_handler"


def test_the_folder_is_whole_and_nothing_else_is_left(tmp_path):
    assert new_handler(tmp_path / "my_handler") == FILES
    assert [path.name for path in tmp_path.iterdir()] == ["my_handler"]
    found = [path.relative_to(tmp_path / "my_handler").as_posix() for path in (tmp_path / "my_handler").rglob("*.*")]
    assert sorted(found) == FILES


def test_every_file_is_what_its_name_says(made):
    for file in made.rglob("*.py"):
        ast.parse(file.read_text())
    check_handler(made / "handler.py")
    assert "class MyHandler(BatchHandler)" in (made / "handler.py").read_text()
    assert yaml.safe_load((made / "model" / "model-config.yaml").read_text())["tsbatch"]["aux"]
    for line in (made / "samples.jsonl").read_text().splitlines():
        json.loads(line)
    assert not [file for file in made.rglob("*.*") if file.suffix != ".safetensors" and "$" in file.read_text()]
    assert set(load_file(made / "model" / "net.safetensors")) == {"layer.weight", "layer.bias"}


def test_lint_finds_nothing_in_it(made, capsys):
    assert main(["lint", str(made)]) == 0
    assert "error" not in capsys.readouterr().out


def test_the_weights_are_those_that_its_training_makes(made):
    before = load_file(made / "model" / "net.safetensors")
    subprocess.run([sys.executable, "train.py"], cwd=made, check=True)
    trained = load_file(made / "model" / "net.safetensors")
    for key, value in before.items():
        torch.testing.assert_close(trained[key], value, rtol=1e-2, atol=1e-2)


def test_another_name_and_another_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", os.path.join(".", "iris-2"), "--json"]) == 0  # noqa: PTH118 - as a person writes it
    output = json.loads(capsys.readouterr().out)
    assert (output["name"], output["class"], output["files"]) == ("iris-2", "Iris2Handler", FILES)
    assert "--name iris-2" in (tmp_path / "iris-2" / "README.md").read_text()
    assert main(["new", "other"]) == 0
    assert "next: cd other && pytest && tsbatch package --name other" in capsys.readouterr().out


def test_a_missing_pytest_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "one"]) == 0
    assert "pytest" not in capsys.readouterr().err
    monkeypatch.setattr(package_commands, "find_spec", lambda name: None)
    assert main(["new", "two"]) == 0
    assert "pip install pytest" in capsys.readouterr().err
    assert "pip install pytest" in (tmp_path / "two" / "README.md").read_text()


@pytest.mark.parametrize(
    "name, expected",
    [("my_handler", "MyHandler"), ("iris", "IrisHandler"), ("aB-c", "ABCHandler"), ("a_handler_", "AHandler")],
)
def test_class_names(name, expected):
    assert class_name(name) == expected


@pytest.mark.parametrize("name", ["1st", "a b", "ä", "a.b", ".."])
def test_a_name_that_is_none(tmp_path, name):
    with pytest.raises(UsageError, match="cannot be a model's name"):
        new_handler(tmp_path / "x" / name if name != ".." else tmp_path / "..name")


def test_nothing_is_overwritten(made):
    with pytest.raises(UsageError, match="exists"):
        new_handler(made)
    with pytest.raises(UsageError, match="there is no folder"):
        new_handler(made / "none" / "x")


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("tsbatch.packaging.starter_project.Template", None)
    with pytest.raises(TypeError):
        new_handler(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_no_template_is_a_python_file():
    assert not list(TEMPLATES.rglob("*.py"))
