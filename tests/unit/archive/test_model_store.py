from __future__ import annotations

import json
import tarfile
import zipfile

import pytest

from tsbatch.archive.model_store import ModelSource, link_or_copy, sources_of
from tsbatch.errors import UsageError


def write_mar(path, manifest):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
    return path


def mar(path, name="embed", version="2.0"):
    return write_mar(path, {"model": {"modelName": name, "modelVersion": version}})


def test_name_and_version_come_from_the_manifest(tmp_path):
    source = ModelSource.parse(mar(tmp_path / "file.mar"))
    assert (source.name, source.version) == ("embed", "2.0")


def test_a_name_of_the_persons_own(tmp_path):
    path = mar(tmp_path / "file.mar")
    assert ModelSource.parse(f"mine={path}") == ModelSource(path, "mine")
    assert ModelSource(path, "mine").name == "mine"


def test_an_equals_sign_in_a_file_name(tmp_path):
    path = mar(tmp_path / "a=b.mar")
    assert ModelSource.parse(path) == ModelSource(path)


def test_a_folder_and_a_manifest_without_a_name(tmp_path):
    (tmp_path / "my-model" / "MAR-INF").mkdir(parents=True)
    (tmp_path / "my-model" / "MAR-INF" / "MANIFEST.json").write_text('{"model": {}}')
    source = ModelSource.parse(tmp_path / "my-model")
    assert (source.name, source.version) == ("my_model", None)


def test_files_that_are_no_archives(tmp_path):
    with pytest.raises(UsageError, match="no such archive"):
        ModelSource.parse(tmp_path / "none.mar")
    (tmp_path / "text.mar").write_text("hello")
    with pytest.raises(UsageError, match=r"text\.mar is not a model archive"):
        _ = ModelSource.parse(tmp_path / "text.mar").name
    with pytest.raises(UsageError, match="is not a model archive"):
        _ = ModelSource.parse(write_mar(tmp_path / "odd.mar", [])).name


def test_links_in_a_store_of_ours(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    first, second = ModelSource(mar(tmp_path / "a" / "m.mar")), ModelSource(mar(tmp_path / "b" / "m.mar"))
    assert [first.link_into(store), first.link_into(store), second.link_into(store)] == ["m.mar", "m.mar", "m-2.mar"]
    assert (store / "m-2.mar").resolve() == second.path


def test_a_tar_and_a_folder(tmp_path):
    (tmp_path / "m" / "MAR-INF").mkdir(parents=True)
    (tmp_path / "m" / "MAR-INF" / "MANIFEST.json").write_text('{"model": {"modelName": "embed"}}')
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with tarfile.open(tmp_path / folder / "m.tar.gz", "w:gz") as packed:
            packed.add(tmp_path / "m", "root")
    first, second = (ModelSource.parse(tmp_path / folder / "m.tar.gz") for folder in ("a", "b"))
    assert first.name == ModelSource.parse(tmp_path / "m").name == "embed"
    store = tmp_path / "store"
    store.mkdir()
    assert [first.link_into(store), second.link_into(store)] == ["m.tar.gz", "m-2.tar.gz"]
    assert ModelSource(tmp_path / "m").link_into(store) == "m"
    assert [source.path.name for source in sources_of("all", store)] == ["m", "m-2.tar.gz", "m.tar.gz"]


@pytest.mark.parametrize("content", [b"hello", b"\x1f\x8b\x08broken"])
def test_tars_that_are_none(tmp_path, content):
    (tmp_path / "m.tar.gz").write_bytes(content)
    with pytest.raises(UsageError, match=r"m\.tar\.gz is not a model archive"):
        ModelSource.parse(tmp_path / "m.tar.gz")
    with tarfile.open(tmp_path / "empty.tar.gz", "w:gz"):
        pass
    with pytest.raises(UsageError, match=r"no MAR-INF/MANIFEST\.json"):
        ModelSource.parse(tmp_path / "empty.tar.gz")


def test_a_system_that_refuses_links(tmp_path, monkeypatch):
    source = mar(tmp_path / "m.mar")

    def refuse(self, target):
        raise OSError("no links here")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    with pytest.raises(OSError, match="no links here"):
        link_or_copy(source, tmp_path / "copy.mar")


def test_what_load_models_names(tmp_path):
    mar(tmp_path / "a.mar")
    mar(tmp_path / ".hidden.mar")
    (tmp_path / "notes.txt").write_text("")
    assert sources_of("ALL", tmp_path) == [ModelSource(tmp_path / "a.mar")]
    assert sources_of("a.mar, x=b.mar,http://h/c.mar,", tmp_path) == [
        ModelSource(tmp_path / "a.mar"),
        ModelSource(tmp_path / "b.mar", "x"),
    ]
    assert sources_of("", tmp_path) == []
