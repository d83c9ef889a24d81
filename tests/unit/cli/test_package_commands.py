"""`tsbatch package` and `tsbatch handler-path` at the command line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tsbatch.cli.program import main
from tsbatch.emulation.model_loader import METRICS_CONFIG


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "a model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


@pytest.fixture
def pack(tmp_path, model):
    store = str(tmp_path / "store")
    return lambda *words: main(
        ["package", "--task", "text-embedding", "--model", str(model), "--name", "m", "-o", store, *words]
    )


def test_package_says_what_it_made_and_what_comes_next(pack, tmp_path, model, capsys):
    (model / "tf_model.h5").touch()
    assert pack("--batch-size", "16") == 0
    out, err = capsys.readouterr()
    path = tmp_path / "store" / "m.mar"
    assert str(path) in out
    assert hashlib.sha256(path.read_bytes()).hexdigest() in out
    assert "batchSize 16" in out
    assert f"next: tsbatch serve --models {path}" in out
    assert "tf_model.h5" in err
    assert "packing m.mar" in err


def test_json_is_one_object_and_nothing_else(pack, tmp_path, capsys):
    labels = tmp_path / "labels.json"
    labels.write_text("[]", encoding="utf-8")
    assert pack("--json", "--aux", f"labels={labels}", "--threads", "2", "--version", "3", "--workers", "2") == 0
    report = json.loads(capsys.readouterr().out)
    path = Path(report["archive"])
    assert path.is_absolute()
    assert report["schema"] == 1
    assert (report["name"], report["version"]) == ("m", "3")
    assert report["bytes"] == path.stat().st_size
    assert report["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert report["config"]["minWorkers"] == report["config"]["maxWorkers"] == 2
    assert report["config"]["tsbatch"]["aux"] == {"labels": "auxiliary/labels.json"}
    assert report["config"]["tsbatch"]["threads"] == 2
    assert (report["left_out"], report["notes"]) == ([], [])


def test_config_gives_the_file_to_start_from(pack, tmp_path, capsys):
    own = tmp_path / "own.yaml"
    own.write_text("maxBatchDelay: 7\nhandler: {a: 1}\n", encoding="utf-8")
    assert pack("--json", "--config", str(own)) == 0
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["maxBatchDelay"], config["handler"]) == (7, {"a": 1})


def test_many_left_out_files_are_counted_and_notes_shown(pack, model, capsys):
    for number in range(11):
        (model / f"pytorch_model-{number}.bin").touch()
    (model / "model-config.yaml").write_text("batchSize: 4\n", encoding="utf-8")
    assert pack() == 0
    err = capsys.readouterr().err
    assert "and 3 more" in err
    assert "note: the model folder's model-config.yaml is used" in err


@pytest.mark.parametrize(
    "words, message",
    [
        (["--aux", "labels"], "expected NAME=FILE"),
        (["--aux", "=x"], "expected NAME=FILE"),
        (["--aux", "a=x.json", "--aux", "a=y.json"], "given twice"),
        (["--threads", "none"], "expected auto or a positive number"),
        (["--threads", "0"], "expected auto or a positive number"),
        (["--batch-size", "0"], "--batch-size: must be from 1"),
        (["--max-batch-delay", "0"], "100 ms"),
        (["--config", "nowhere.yaml"], "cannot be read"),
        (["--batch-size", "x"], "--batch-size"),
    ],
)
def test_bad_input_is_one_line_and_2(pack, capsys, words, message):
    assert pack(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_an_archive_that_is_there_needs_force(pack, capsys):
    assert pack() == 0
    capsys.readouterr()
    assert pack() == 2
    assert "--force" in capsys.readouterr().err
    assert pack("--force") == 0


def test_handler_path(capsys):
    assert main(["handler-path", "text-embedding"]) == 0
    path = Path(capsys.readouterr().out.rstrip("\n"))
    assert path.is_file()
    assert main(["handler-path", "text-embedding", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "task": "text-embedding", "path": str(path)}


def test_the_path_of_our_metrics_as_the_file_itself_says(capsys):
    assert main(["handler-path", "metrics"]) == 0
    path = Path(capsys.readouterr().out.rstrip("\n"))
    assert path == METRICS_CONFIG
    assert "`tsbatch handler-path metrics`" in path.read_text(encoding="utf-8")


def test_handler_path_of_an_unknown_task(capsys):
    assert main(["handler-path", "nothing"]) == 2
    assert "text-embedding" in capsys.readouterr().err


@pytest.mark.parametrize(
    "form, file", [("mar", "m.mar"), ("mar-compressed", "m.mar"), ("tar.gz", "m.tar.gz"), ("folder", "m")]
)
def test_every_format_is_told_with_its_digest(pack, tmp_path, capsys, form, file):
    assert pack("--format", form, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    path = tmp_path / "store" / file
    assert report["archive"] == str(path)
    digested = path / "MAR-INF" / "tsbatch.json" if form == "folder" else path
    assert report["sha256"] == hashlib.sha256(digested.read_bytes()).hexdigest()
    files = [found for found in path.rglob("*") if found.is_file()] if form == "folder" else [path]
    assert report["bytes"] == sum(found.stat().st_size for found in files)


def test_links_are_for_folders(pack, tmp_path, model, capsys):
    assert pack("--link") == 2
    assert "--link needs --format folder, but the format is mar" in capsys.readouterr().err
    assert pack("--link", "--format", "folder") == 0
    assert (tmp_path / "store" / "m" / "model.safetensors").samefile(model / "model.safetensors")


def own_handler(tmp_path, source):
    handler, folder = tmp_path / "my_handler.py", tmp_path / "own"
    handler.write_text(source, encoding="utf-8")
    folder.mkdir()
    import torch

    torch.save({"weight": torch.ones(1)}, folder / "net.pt")
    return ["package", "--name", "own", "--handler", str(handler), "--model", str(folder), "-o", str(tmp_path)]


def test_pickles_are_converted_and_said(tmp_path, capsys):
    words = own_handler(tmp_path, "from tsbatch import BatchHandler\n\n\nclass H(BatchHandler):\n    pass\n")
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "converting net.pt to safetensors" in err
    assert "note: pickles were converted to safetensors: net.pt as net.safetensors" in err
    assert "next: tsbatch serve" in out


def test_pickles_of_other_handlers_need_leave(tmp_path, capsys):
    words = own_handler(tmp_path, "class H:\n    pass\n")
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "--allow-pickle" in err
    assert len(err.splitlines()) == 1
    assert main([*words, "--allow-pickle"]) == 0
    assert "net.pt" in capsys.readouterr().err


def test_what_else_goes_in(tmp_path, capsys):
    (tmp_path / "h.py").write_text("class H:\n    pass\n", encoding="utf-8")
    (tmp_path / "net.py").write_text("class Net:\n    pass\n", encoding="utf-8")
    (tmp_path / "labels.txt").write_text("cat\ndog\n", encoding="utf-8")
    words = ["package", "--name", "own", "--handler", str(tmp_path / "h.py"), "-o", str(tmp_path / "s"), "--json"]
    words += ["--model-file", str(tmp_path / "net.py"), "--labels", str(tmp_path / "labels.txt")]
    assert main([*words, "--requirements", "auto", "--bundle", "--format", "folder"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["config"]["useVenv"] is True
    assert report["config"]["tsbatch"]["aux"] == {"labels": "index_to_name.json"}
    assert any("bundled for" in note for note in report["notes"])
    folder = Path(report["archive"])
    for name in ("net.py", "requirements.txt", "index_to_name.json", "tsbatch/handler.py", "orjson/__init__.py"):
        assert (folder / name).is_file()
    assert main([*words, "--requirements", str(tmp_path / "none.txt"), "--force"]) == 2
    assert "--requirements" in capsys.readouterr().err
