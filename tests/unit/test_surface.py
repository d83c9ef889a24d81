"""Whatever moves inside the package: what others build on is what it was when tests/surface/snapshot.json was taken."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path

import pytest

from tests.surface import take

SNAPSHOT = take.read()
INSTEAD = "\n(tests/surface/take.py says when to take the snapshot anew)"


@pytest.mark.parametrize("section", take.QUICK)
def test_what_others_build_on_is_what_it_was(section):
    different = take.differences(SNAPSHOT[section], take.plain(take.QUICK[section]()))
    assert not different, "\n".join([f"{section}:", *different]) + INSTEAD


@pytest.mark.parametrize(
    "module,name", [(module, name) for module, names in SNAPSHOT["imports"].items() for name in names]
)
def test_a_documented_import_works(module, name):
    assert getattr(importlib.import_module(module), name).__name__ == name


@pytest.mark.parametrize("path", sorted(take.ROOT.glob("tests/surface/**/*.*")), ids=lambda path: path.name)
def test_the_snapshot_knows_no_machine(path):
    if path.suffix in {".json", ".jsonl", ".log", ".tuning"}:
        text = path.read_text(encoding="utf-8")
        here = (tempfile.gettempdir(), str(Path.home()), str(take.ROOT))
        assert not [folder for folder in here if f"{folder}/" in text]


def test_the_old_files_are_small():
    old = take.HERE / "old"
    assert sum(path.stat().st_size for path in old.rglob("*") if path.is_file()) < 300_000


class TestDifferences:
    def test_nothing(self):
        assert take.differences({"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}) == []

    @pytest.mark.parametrize(
        "old,new,said",
        [
            ({"a": 1}, {"b": 1}, ["gone: a (was 1)", "new: b (is 1)"]),
            ({"a": {"b": "number"}}, {"a": {"b": "null"}}, ['changed: a → b → "number" → "null"']),
            ({"a": [1, 2]}, {"a": [1, 2, 3]}, ["new: a → 3"]),
            ({"a": [1, 1]}, {"a": [1]}, ["order: a → "]),
            ({"a": [1, 2]}, {"a": [1, 3]}, ["changed: a → [1] → 2 → 3"]),
            ([], {}, ["changed: [] → {}"]),
        ],
    )
    def test_each_is_a_line(self, old, new, said):
        assert take.differences(old, new) == said
