"""Detecting changes after packaging."""

from __future__ import annotations

import json

import pytest

from tests.unit.archive.archives import TAMPERINGS, contents, make, rewrite
from tsbatch.archive.reader import scan
from tsbatch.archive.verification import about, config_of, diff, manifest_of, verify
from tsbatch.archive.writer import FORMATS, HASHES_NAME


def findings(path):
    return {(finding.file, finding.what) for finding in verify(scan(path))}


@pytest.mark.parametrize("form", FORMATS)
def test_an_unchanged_archive_passes(tmp_path, form):
    assert findings(make(tmp_path, form)) == set()


@pytest.mark.parametrize("form", ["mar", "tar.gz", "folder"])
@pytest.mark.parametrize("tamper, wanted", TAMPERINGS.items())
def test_a_later_change_is_reported(tmp_path, form, tamper, wanted):
    path = make(tmp_path, form)
    rewrite(path, tamper(contents(path)))
    assert findings(path) == wanted
    assert all(str(finding).startswith(finding.file) for finding in verify(scan(path)))


def test_an_archive_of_another_tool_cannot_be_compared(tmp_path):
    path = make(tmp_path)
    files = contents(path)
    del files[HASHES_NAME]
    rewrite(path, files)
    assert findings(path) == {(HASHES_NAME, "no hashes")}


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": 99, "files": {}}', '{"schema": 1, "files": [1]}', "\udcff"])
def test_an_invalid_list_of_hashes(tmp_path, text):
    path = make(tmp_path)
    rewrite(path, {**contents(path), HASHES_NAME: text.encode(errors="surrogateescape")})
    assert findings(path) == {(HASHES_NAME, "no hashes")}


def test_files_that_workers_write_into_a_folder_are_ignored(tmp_path):
    path = make(tmp_path, "folder")
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / "my_handler.cpython-311.pyc").touch()
    assert findings(path) == set()
    assert scan(path).compiled == ["__pycache__/my_handler.cpython-311.pyc"]


def test_facts(tmp_path):
    found = scan(make(tmp_path, version="2.0"))
    assert manifest_of(found)["model"]["modelVersion"] == "2.0"
    assert config_of(found)["batchSize"] == 8
    assert about(found)["schema"] == 1
    found.texts = {"model-config.yaml": b"[1", "MAR-INF/MANIFEST.json": b"[]"}
    assert (manifest_of(found), config_of(found), about(found)) == ({}, {}, {})


def test_differences_are_listed_by_file_and_key(tmp_path):
    one = make(tmp_path / "a")
    other = make(tmp_path / "b", "folder", version="2.0", files={"labels.json": b"[]", "w.bin": b"w", "more": b""})
    config = (other / "model-config.yaml").read_text().replace("batchSize: 8", "batchSize: 4")
    (other / "model-config.yaml").write_text(config.replace("threads: auto", "threads: 2"))
    found = {(each.what, each.name): (each.a, each.b) for each in diff(scan(one), scan(other))}
    assert found[("config", "batchSize")] == (8, 4)
    assert found[("config", "tsbatch.threads")] == ("auto", 2)
    assert found[("manifest", "model.modelVersion")] == ("1.0", "2.0")
    assert found[("file", "x.bin")][1] is None
    assert found[("file", "more")][0] is None
    assert found[("file", "labels.json")][1]["bytes"] == 2
    assert {kind for kind, _ in found} == {"config", "manifest", "file"}
    assert len(found) == 7
    assert diff(scan(one), scan(make(tmp_path / "c", "tar.gz"))) == []


def test_swapped_hashes_do_not_hide_a_file(tmp_path):
    path = make(tmp_path, "folder")
    document = json.loads((path / HASHES_NAME).read_text())
    del document["files"]["w.bin"]
    (path / HASHES_NAME).write_text(json.dumps(document))
    assert findings(path) == {("w.bin", "added")}
