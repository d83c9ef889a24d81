"""Auxiliary files: each kind read once, and wrong ones refused in one line."""

from __future__ import annotations

import json
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tsbatch.errors import LoadError
from tsbatch.worker.aux_files import READERS, load_auxiliary

TABLE = {"labels": ["cat", "dög"], "threshold": 0.5}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(TABLE), encoding="utf-8")
    for name in ("a.yaml", "a.yml"):
        (tmp_path / name).write_text('labels: ["cat", "dög"]\nthreshold: 0.5\n', encoding="utf-8")
    (tmp_path / "a.toml").write_text('labels = ["cat", "dög"]\nthreshold = 0.5\n', encoding="utf-8")
    (tmp_path / "a.txt").write_text("cat\ndög\n", encoding="utf-8")
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.ones(2))
    save_file({"w": torch.ones(2)}, tmp_path / "a.safetensors")
    return tmp_path


def load(file, folder):
    return load_auxiliary({"it": file}, folder)["it"]


@pytest.mark.parametrize("file", ["a.json", "a.yaml", "a.yml", "a.toml"])
def test_tables(folder, file):
    assert load(file, folder) == TABLE


def test_text_arrays_and_tensors(folder):
    assert load("a.txt", folder) == "cat\ndög\n"
    assert load("a.npy", folder).tolist() == [0, 1, 2]
    assert {name: array.tolist() for name, array in load("a.npz", folder).items()} == {"x": [0, 1, 2], "y": [1, 1]}
    assert load("a.safetensors", folder)["w"].tolist() == [1, 1]


def test_every_reader_is_tested(folder):
    assert {path.suffix for path in folder.iterdir()} == set(READERS)


def test_files_in_folders_and_upper_case(folder):
    (folder / "sub").mkdir()
    (folder / "sub/B.JSON").write_text("[1]")
    assert load("sub/B.JSON", folder) == [1]
    assert load("sub/../a.json", folder) == TABLE


def test_the_mapping_cannot_be_changed(folder):
    aux = load_auxiliary({"it": "a.json"}, folder)
    with pytest.raises(TypeError):
        aux["it"] = 1
    assert load_auxiliary({}, folder) == {}


def failure(file, folder):
    with pytest.raises(LoadError) as caught:
        load(file, folder)
    message = str(caught.value)
    assert message.startswith(f"model-config.yaml: tsbatch.aux.it: {file}: ")
    return message


@pytest.mark.parametrize("file", ["../outside.json", "/etc/hostname.json", "sub/../../outside.json"])
def test_outside_the_archive(tmp_path, file):
    (tmp_path / "outside.json").write_text("{}")
    inside = tmp_path / "model"
    inside.mkdir()
    assert "outside the archive" in failure(file, inside)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_that_leads_outside(tmp_path):
    (tmp_path / "outside.json").write_text("{}")
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "link.json").symlink_to(tmp_path / "outside.json")
    assert "outside the archive" in failure("link.json", inside)


def test_missing_says_how_to_pack_it(tmp_path):
    assert "tsbatch package --aux it=labels.json" in failure("labels.json", tmp_path)
    (tmp_path / "folder.json").mkdir()
    assert "no such file" in failure("folder.json", tmp_path)


def test_an_unknown_kind_lists_the_known_ones(tmp_path):
    (tmp_path / "a.csv").write_text("a,b")
    message = failure("a.csv", tmp_path)
    assert all(suffix in message for suffix in READERS)


@pytest.mark.parametrize("suffix", [suffix for suffix in READERS if suffix != ".txt"])
def test_broken(tmp_path, suffix):
    (tmp_path / f"a{suffix}").write_bytes(b"{]: \x93 = not = anything")
    message = failure(f"a{suffix}", tmp_path)
    assert "cannot be read" in message
    assert "\n" not in message, "one line"


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    assert "UnicodeDecodeError" in failure("a.txt", tmp_path)


def test_no_code_is_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (os.system, ("true",))

    np.save(tmp_path / "a.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    assert "cannot be read" in failure("a.npy", tmp_path)
    (tmp_path / "b.yaml").write_text("!!python/object/apply:os.getcwd []")
    assert "cannot be read" in failure("b.yaml", tmp_path)
    (tmp_path / "c.npz").write_bytes(pickle.dumps(Trap()))
    assert "cannot be read" in failure("c.npz", tmp_path)


def test_a_missing_package_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert "pip install safetensors" in failure("a.safetensors", folder)
