"""Planning and writing an archive, without TorchServe."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.unit.archive.archives import contents
from tsbatch.archive.model_config import ModelConfig
from tsbatch.archive.model_store import ModelSource
from tsbatch.archive.writer import sha256
from tsbatch.errors import UsageError
from tsbatch.packaging.builder import package, plan, write
from tsbatch.system import atomic_write


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    (folder / "1_Pooling" / "config.json").write_text('{"pooling": "mean"}', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(os.urandom(1_500_000))
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def handler(tmp_path):
    path = tmp_path / "my_handler.py"
    path.write_text("class MyHandler:\n    pass\n", encoding="utf-8")
    return path


def embedding(model, **options):
    return plan(**{"name": "m", "task": "text-embedding", "model": model, **options})


def test_what_an_archive_holds(tmp_path, model):
    (model / ".gitattributes").touch()
    (model / "__pycache__").mkdir()
    (model / "__pycache__" / "x.pyc").touch()
    (model / "tf_model.h5").touch()
    path = package(name="m", task="text-embedding", model_dir=model, version="2.1", output_dir=tmp_path / "store")
    assert path == tmp_path / "store" / "m.mar"
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [
            "1_Pooling/config.json",
            "MAR-INF/MANIFEST.json",
            "config.json",
            "model-config.yaml",
            "model.safetensors",
            "text_embedding.py",
            "tokenizer.json",
            "MAR-INF/tsbatch.json",
        ]
        assert archive.read("1_Pooling/config.json") == b'{"pooling": "mean"}'
        assert archive.read("model.safetensors") == (model / "model.safetensors").read_bytes()
        config = yaml.safe_load(archive.read("model-config.yaml"))
        manifest = json.loads(archive.read("MAR-INF/MANIFEST.json"))
    assert config["tsbatch"]["task"] == "text-embedding"
    assert manifest["model"]["handler"] == "text_embedding.py"
    assert manifest["model"]["modelVersion"] == "2.1"
    assert embedding(model).left_out == [".gitattributes", "__pycache__/x.pyc", "tf_model.h5"]


def test_the_same_inputs_give_the_same_bytes(tmp_path, model):
    first = package(name="m", task="text-embedding", model_dir=model, output_dir=tmp_path / "a")
    copy = tmp_path / "elsewhere" / "copied"
    shutil.copytree(model, copy, copy_function=shutil.copyfile)
    for path in copy.rglob("*"):
        os.utime(path, (10**9, 10**9))
    (copy / "config.json").chmod(0o600)
    second = package(name="m", task="text-embedding", model_dir=copy, output_dir=tmp_path / "b")
    assert sha256(first) == sha256(second)
    (copy / "config.json").write_text("{ }", encoding="utf-8")
    third = package(name="m", task="text-embedding", model_dir=copy, output_dir=tmp_path / "c")
    assert sha256(third) != sha256(first)


@pytest.mark.parametrize("form, name", [("mar", "m.mar"), ("tar.gz", "m.tar.gz"), ("folder", "m")])
def test_an_archive_that_is_there_needs_force(tmp_path, model, form, name):
    archive, store = embedding(model), tmp_path / "store"
    path = write(archive, store, form=form).path
    with pytest.raises(UsageError, match=rf"{name} exists; replace it with --force"):
        write(archive, store, form=form)
    assert write(archive, store, form=form, force=True).path == path == store / name
    assert list(store.iterdir()) == [path]


def test_something_else_of_that_name_is_never_replaced(tmp_path, model):
    (tmp_path / "m").touch()
    (tmp_path / "m.mar").mkdir()
    for form, kind in (("folder", "file"), ("mar", "folder")):
        with pytest.raises(UsageError, match=f"is a {kind} of another format"):
            write(embedding(model), tmp_path, form=form, force=True)


@pytest.mark.parametrize("form", ["mar", "mar-compressed", "tar.gz", "folder"])
def test_every_format_holds_the_same(tmp_path, model, form):
    path = write(embedding(model), tmp_path / "store", form=form).path
    source = ModelSource.parse(path)
    assert (source.name, source.version) == ("m", "1.0")
    assert contents(path) == contents(write(embedding(model), tmp_path / "other").path)


def test_a_folder_of_links(tmp_path, model):
    path = package(name="m", task="text-embedding", model_dir=model, output_dir=tmp_path, form="folder", link=True)
    assert (path / "model.safetensors").samefile(model / "model.safetensors")


def test_a_failure_half_way_keeps_the_old_archive(tmp_path, model):
    store = tmp_path / "store"
    path = write(embedding(model), store).path
    before = sha256(path)

    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(embedding(model, version="2"), store, force=True, on_bytes=stop)
    assert sha256(path) == before
    assert list(store.iterdir()) == [path]


def test_many_archives_of_one_name_written_at_once_do_not_interfere(tmp_path, model):
    plans = [embedding(model, version=str(number)) for number in range(20)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda archive: write(archive, tmp_path / "store", force=True).path, plans))
    assert list((tmp_path / "store").iterdir()) == [paths[0]]
    with zipfile.ZipFile(paths[0]) as archive:
        assert archive.testzip() is None
        assert archive.read("model.safetensors") == (model / "model.safetensors").read_bytes()


def test_of_many_writers_without_force_one_succeeds(tmp_path, model):
    archive = embedding(model)

    def attempt(_):
        try:
            return write(archive, tmp_path / "store").path
        except UsageError as error:
            return str(error)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = list(pool.map(attempt, range(8)))
    assert sum(isinstance(result, Path) for result in done) == 1
    assert all("exists" in result for result in done if isinstance(result, str))


def test_a_file_that_cannot_be_read_is_named(tmp_path, model):
    archive = embedding(model)
    (model / "tokenizer.json").unlink()
    with pytest.raises(UsageError, match=r"m\.mar: cannot be written: .*tokenizer\.json"):
        write(archive, tmp_path / "store")
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize("name", ["", "-m", "a b", "a/b", "m\n", "ü", "../m"])
def test_names_that_torchserve_refuses(model, name):
    with pytest.raises(UsageError, match="--name"):
        embedding(model, name=name)
    with pytest.raises(UsageError, match="--version"):
        embedding(model, version=name)


def test_exactly_one_of_task_and_handler(model, handler):
    for options in ({"task": None}, {"handler": handler}):
        with pytest.raises(UsageError, match="either --task"):
            embedding(model, **options)


def test_models_that_are_missing(tmp_path, handler):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UsageError, match=r"empty: the folder is empty"):
        embedding(empty)
    with pytest.raises(UsageError, match="no such folder"):
        embedding(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="--model is missing; --task text-embedding needs --model FOLDER"):
        embedding(None)
    with pytest.raises(UsageError, match=r"my_handler.py is a file; --task"):
        embedding(handler)


def test_an_own_handler_gets_the_folder_as_it_is(model, handler):
    (model / "tf_model.h5").touch()
    archive = plan(name="m", handler=handler, model=model)
    assert "tf_model.h5" in archive.files
    assert archive.files["my_handler.py"] == handler
    assert "task" not in archive.config["tsbatch"]


def test_an_own_handler_with_a_single_file_or_none(tmp_path, handler):
    weights = tmp_path / "w.pt"
    weights.write_bytes(b"1")
    archive = plan(name="m", handler=handler, model=weights)
    assert sorted(archive.files) == ["MAR-INF/MANIFEST.json", "model-config.yaml", "my_handler.py", "w.pt"]
    assert json.loads(archive.files["MAR-INF/MANIFEST.json"])["model"]["serializedFile"] == "w.pt"
    assert "w.pt" not in plan(name="m", handler=handler).files


def test_aux_files_are_found_through_the_config(tmp_path, model):
    labels = tmp_path / "labels.JSON"
    labels.touch()
    archive = embedding(model, aux={"labels": labels, "tokens": model / "tokenizer.json"})
    assert archive.config["tsbatch"]["aux"] == {"labels": "auxiliary/labels.JSON", "tokens": "tokenizer.json"}
    assert archive.files["auxiliary/labels.JSON"] == labels


def test_aux_files_that_cannot_be_used(tmp_path, model):
    with pytest.raises(UsageError, match=r"--aux a: .*no such file"):
        embedding(model, aux={"a": tmp_path / "no.json"})
    (tmp_path / "x.pkl").touch()
    with pytest.raises(UsageError, match=r"unknown kind of file; known are \.json"):
        embedding(model, aux={"a": tmp_path / "x.pkl"})


def test_extras_keep_their_place(tmp_path, model):
    (tmp_path / "tools" / "deep").mkdir(parents=True)
    (tmp_path / "tools" / "deep" / "t.py").touch()
    (tmp_path / "tools" / ".hidden").touch()
    (tmp_path / "one.txt").touch()
    (tmp_path / "requirements.txt").touch()
    archive = embedding(
        model, extra=[tmp_path / "tools", tmp_path / "one.txt"], requirements=tmp_path / "requirements.txt"
    )
    assert {"tools/deep/t.py", "one.txt", "requirements.txt"} < archive.files.keys()
    assert "tools/.hidden" not in archive.files
    assert json.loads(archive.files["MAR-INF/MANIFEST.json"])["model"]["requirementsFile"] == "requirements.txt"
    with pytest.raises(UsageError, match=r"--extra .*no such file"):
        embedding(model, extra=[tmp_path / "nothing"])


@pytest.mark.parametrize("name", ["config.json", "Tokenizer.JSON", "text_embedding.py", "model-config.yaml"])
def test_a_collision_is_an_error_that_names_both(tmp_path, model, name):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / name
    other.touch()
    with pytest.raises(UsageError, match="is in the archive already"):
        embedding(model, extra=[other])


def test_files_of_the_model_folder_may_be_named_once_more(model):
    own = model / "my_handler.py"
    own.write_text("class MyHandler: pass", encoding="utf-8")
    (model / "requirements.txt").touch()
    archive = plan(name="m", handler=own, model=model, requirements=model / "requirements.txt", extra=[own])
    assert archive.files["my_handler.py"] == own
    assert json.loads(archive.files["MAR-INF/MANIFEST.json"])["model"]["requirementsFile"] == "requirements.txt"


def test_a_file_and_a_folder_of_one_name_collide(tmp_path, model):
    (tmp_path / "1_Pooling").touch()
    with pytest.raises(UsageError, match="is a folder in the archive already"):
        embedding(model, extra=[tmp_path / "1_Pooling"])
    folder = tmp_path / "x" / "tokenizer.json"
    folder.mkdir(parents=True)
    (folder / "y").touch()
    with pytest.raises(UsageError, match="is in the archive already"):
        embedding(model, extra=[folder])


def test_the_folder_s_own_config_is_completed_and_noted(tmp_path, model):
    (model / "model-config.yaml").write_text("batchSize: 4\nhandler: {a: 1}\n", encoding="utf-8")
    archive = embedding(model, config=ModelConfig(batch_size=8))
    assert (archive.config["batchSize"], archive.config["handler"]) == (8, {"a": 1})
    assert any("is used and completed" in note for note in archive.notes)
    assert any("batchSize: 4" in note for note in archive.notes)
    archive = embedding(model, config=ModelConfig(base={"batchSize": 2}))
    assert archive.config["batchSize"] == 2
    assert any("is ignored" in note for note in archive.notes)
    assert "handler" not in archive.config


def test_size_counts_every_file(model):
    archive = embedding(model)
    parts = [len(file) if isinstance(file, bytes) else Path(file).stat().st_size for file in archive.files.values()]
    assert archive.size == sum(parts) > 1_500_000


@pytest.mark.parametrize("form", ["mar", "tar.gz", "folder"])
def test_the_result_describes_what_was_written_even_if_it_was_replaced(tmp_path, model, form, monkeypatch):
    """As with 20 processes that package at once: each describes its own archive."""
    lone = write(embedding(model), tmp_path / "lone", form=form)
    remove = shutil.rmtree if form == "folder" else os.unlink
    rename = "_renamed" if form == "folder" else "_rename_file"
    original = getattr(atomic_write, rename)

    def and_gone(part, target, **options):
        done = original(part, target, **options)
        remove(target)
        return done

    monkeypatch.setattr(atomic_write, rename, and_gone)
    written = write(embedding(model), tmp_path / "store", form=form)
    assert not written.path.exists()
    assert (written.sha256, written.bytes) == (lone.sha256, lone.bytes)
    assert lone.bytes == sum(len(content) for content in contents(lone.path).values()) or form != "folder"
