"""`tsbatch verify`, `tsbatch inspect` and `tsbatch diff` at the command line."""

from __future__ import annotations

import hashlib
import json

import pytest

from tests.unit.archive.archives import TAMPERINGS, changed, contents, make, rewrite
from tsbatch._version import __version__
from tsbatch.archive.writer import FORMATS
from tsbatch.cli import inspect_commands, main


@pytest.mark.parametrize("form", FORMATS)
def test_verify_is_0_then_1_and_names_the_file(tmp_path, capsys, form):
    path = make(tmp_path, form)
    assert main(["verify", str(path)]) == 0
    assert "7 files, all unchanged since packaging" in capsys.readouterr().out
    rewrite(path, changed(contents(path)))
    assert main(["verify", str(path)]) == 1
    assert f"{path}: w.bin: changed" in capsys.readouterr().out
    assert main(["verify", "--json", str(path)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["ok"]) == (1, False)
    assert [(finding["file"], finding["what"]) for finding in report["findings"]] == [("w.bin", "changed")]


@pytest.mark.parametrize("verb", ["verify", "inspect"])
@pytest.mark.parametrize("content", [None, b"no archive"])
def test_bad_archives_are_one_line_and_2(tmp_path, capsys, verb, content):
    path = tmp_path / "bad.mar"
    if content:
        path.write_bytes(content)
    assert main([verb, str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert str(path) in err
    assert len(err.splitlines()) == 1


def test_compiled_files_are_noted(tmp_path, capsys):
    path = make(tmp_path, "folder")
    (path / "__pycache__").mkdir()
    (path / "__pycache__" / "x.pyc").touch()
    assert main(["verify", str(path)]) == 0
    assert "1 compiled Python files" in capsys.readouterr().err


@pytest.mark.parametrize("form", FORMATS)
def test_inspect_tells_what_it_is(tmp_path, capsys, form):
    path = make(tmp_path, form, version="2.0")
    assert main(["inspect", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["schema"], facts["name"], facts["version"], facts["handler"]) == (1, "m", "2.0", "my_handler.py")
    assert facts["tsbatch"] == __version__
    assert facts["config"]["batchSize"] == 8
    assert facts["files"]["w.bin"] == {"bytes": 10240, "sha256": hashlib.sha256(contents(path)["w.bin"]).hexdigest(),
                                       "problem": None}  # fmt: skip
    assert facts["sha256"] == (None if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest())
    assert (facts["verified"], facts["findings"], facts["engines"]) == (True, [], None)
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    for text in ("m 2.0", "my_handler.py", "batchSize: 8", "w.bin", "10240", "verify: unchanged since packaging"):
        assert text in out


@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_inspect_says_what_verify_says(tmp_path, capsys, tamper):
    path = make(tmp_path)
    rewrite(path, tamper(contents(path)))
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "CHANGED since packaging" in out
    assert all(f"{file}: {what}" in out for file, what in TAMPERINGS[tamper])


def test_inspect_shows_the_engines_that_were_measured(tmp_path, capsys):
    trial = {"engine": "eager", "dtype": "float32", "mode": "packed", "alone": 50.0, "batched": 120.0}
    path = make(tmp_path, files={"engines.json": json.dumps({"schema": 1, "trials": [trial]}).encode()})
    assert main(["inspect", str(path)]) == 0
    assert "120" in capsys.readouterr().out
    other = make(tmp_path / "other", files={"engines.json": b'{"trials": [{"unknown": 1}]}'})
    assert main(["inspect", str(other)]) == 0


def test_diff_is_0_for_the_same_and_1_with_a_table(tmp_path, capsys):
    one, same = make(tmp_path / "a"), make(tmp_path / "b", "folder")
    assert main(["diff", str(one), str(same)]) == 0
    assert "the same" in capsys.readouterr().out
    other = make(tmp_path / "c", "tar.gz", version="2.0", files={"w.bin": b"1"})
    assert main(["diff", str(one), str(other)]) == 1
    out = capsys.readouterr().out
    for text in ("w.bin", "1 bytes", "labels.json", "model.modelVersion", "2.0"):
        assert text in out
    assert main(["diff", "--json", str(one), str(other)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["schema"], report["same"]) == (1, False)
    assert {"what": "manifest", "name": "model.modelVersion", "a": "1.0", "b": "2.0"} in report["differences"]


def test_large_archives_show_progress(tmp_path, capsys, monkeypatch):
    path = make(tmp_path)
    main(["verify", str(path)])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(inspect_commands, "SILENT", 10_000)
    main(["verify", str(path)])
    assert "reading m.mar (MB)" in capsys.readouterr().err
