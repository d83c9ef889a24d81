"""The entry module: found for a task, and a user's own one looked at before it ships."""

from __future__ import annotations

import pytest

from tsbatch.errors import UsageError
from tsbatch.packaging import handler_files
from tsbatch.packaging.handler_files import check_handler, entry_file, entry_files


def test_the_entry_file_of_a_task_exists_and_passes_the_rules():
    path = entry_file("text-embedding")
    assert path.is_absolute()
    assert path.name == "text_embedding.py"
    check_handler(path)


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(UsageError, match=r"no task 'text_embedding'; .*text-embedding"):
        entry_file("text_embedding")


def test_the_folder_of_a_wheel_comes_first(tmp_path, monkeypatch):
    folders = [tmp_path / "wheel", tmp_path / "checkout"]
    monkeypatch.setattr(handler_files, "FOLDERS", folders)
    assert entry_files() == {}
    for folder in reversed(folders):
        folder.mkdir()
        (folder / "object_detection.py").touch()
        assert entry_files() == {"object-detection": folder / "object_detection.py"}


@pytest.mark.parametrize(
    "text",
    [
        "class H: pass",
        "def handle(data, context): return data",
        "from mine import handle",
        "from mine import *",
        "from x import Base\nclass H(Base): pass",
        "x: int = 1\nimport os\nclass H: pass\n'doc'",
        "try:\n    class H: pass\nexcept ImportError:\n    pass",
        "handle = object()\nclass A: pass\nclass B: pass",
    ],
)
def test_entries_that_torchserve_takes(tmp_path, text):
    path = tmp_path / "my_handler.py"
    path.write_text(text, encoding="utf-8")
    check_handler(path)


@pytest.mark.parametrize(
    "text, message",
    [
        ("from x import H", "no class; TorchServe expects exactly one"),
        ("class A: pass\nclass B: pass", r"2 classes \(A, B\)"),
        ("x = 1\nclass (", r"line 2: not Python"),
        ("x = '\0'", "not Python"),
    ],
)
def test_entries_that_torchserve_refuses(tmp_path, text, message):
    path = tmp_path / "my_handler.py"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        check_handler(path)


@pytest.mark.parametrize(
    "name, message",
    [
        ("json.py", "Python's own module"),
        ("service.py", "TorchServe's own service.py"),
        ("torch.py", "hide the installed package 'torch'"),
        ("my.handler.py", "with no other dot"),
        ("handler.txt", "NAME.py"),
    ],
)
def test_names_that_would_not_be_imported(tmp_path, name, message):
    path = tmp_path / name
    path.write_text("class H: pass", encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        check_handler(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        check_handler(tmp_path / "h.py")
