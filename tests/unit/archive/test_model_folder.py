"""What of a model folder goes in, and what it must have."""

from __future__ import annotations

import os
import sys

import pytest

from tsbatch.archive.model_folder import clutter, not_needed, pickled, walk, weight_bytes
from tsbatch.errors import UsageError


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}", encoding="utf-8")
    return walk(folder)


def test_walk_keeps_sub_folders_and_uses_slashes(tmp_path):
    assert list(make(tmp_path, "b.txt", "1_Pooling/config.json", "a/b/c")) == [
        "1_Pooling/config.json",
        "a/b/c",
        "b.txt",
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_walk_follows_links_of_files_and_folders(tmp_path):
    make(tmp_path, "blobs/1", "sub/x")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "config.json").symlink_to(tmp_path / "blobs" / "1")
    (folder / "inner").symlink_to(tmp_path / "sub")
    assert list(walk(folder)) == ["config.json", "inner/x"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
@pytest.mark.parametrize("target, message", [("nowhere", "broken link"), (".", "leads back")])
def test_walk_refuses_links_that_lead_nowhere_or_back(tmp_path, target, message):
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(UsageError, match=message):
        walk(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_walk_refuses_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        walk(tmp_path)


@pytest.mark.parametrize(
    "name, expected",
    [
        (".gitattributes", True),
        ("a/.cache/x", True),
        ("__pycache__/m.pyc", True),
        ("m.pyc", True),
        ("MAR-INF/MANIFEST.json", True),
        ("sub/MAR-INF/x", False),
        ("config.json", False),
    ],
)
def test_clutter(name, expected):
    assert clutter(name) is expected


def test_other_frameworks_are_left_out_only_beside_safetensors(tmp_path):
    others = ["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "rust_model.ot", "model.onnx"]
    files = make(tmp_path, "onnx/model.onnx", "openvino/openvino_model.bin", "2_Dense/pytorch_model.bin", *others)
    assert not_needed(files) == []
    files = make(tmp_path, "model.safetensors", "keep.txt", "optimizer.pt", "checkpoint-5/model.safetensors")
    assert set(not_needed(files)) == {
        *others,
        "onnx/model.onnx",
        "openvino/openvino_model.bin",
        "optimizer.pt",
        "checkpoint-5/model.safetensors",
    }
    assert "2_Dense/pytorch_model.bin" not in not_needed(files)


def test_pickled_and_weight_bytes(tmp_path):
    files = make(tmp_path, "pytorch_model.bin", "config.json", "model.safetensors", "a.pt")
    assert pickled(files) == ["a.pt", "pytorch_model.bin"]
    assert weight_bytes(files) == 6
