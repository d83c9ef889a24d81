"""The verb kserve, as a person calls it."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.kserve import check_of, faults, own_archive, saved
from tsbatch.cli.program import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mar = own_archive(tmp_path, "My_model")
    saved(check_of(mar, "My_model"), tmp_path / "check.json")
    return tmp_path


PAGE = Path(__file__).resolve().parents[3] / "docs" / "kserve.md"
COMMAND = ["kserve", "My_model.mar", "--check", "check.json"]
GROWS = ["--replicas", "1:4", "--prometheus", "http://p:9090"]


def test_files_and_what_to_do_next(here, capsys):
    assert main([*COMMAND, "--storage-uri", "s3://bucket/m", *GROWS]) == 0
    told = capsys.readouterr()
    assert "docker build -t my-model:1.0 my-model-kserve && docker push my-model:1.0" in told.out
    assert "copy the content of my-model-kserve/storage to s3://bucket/m" in told.out
    assert "kubectl apply -f my-model-kserve/inference-service.yaml" in told.out
    assert "not tested on a cluster" in told.err
    manifest = yaml.safe_load((here / "my-model-kserve" / "inference-service.yaml").read_text())
    assert faults(manifest) == []
    assert manifest["metadata"]["name"] == "my-model"


def test_json_has_the_manifest(here, capsys):
    words = ["--name", "other", "--namespace", "ml", "--image", "r/i:2", "-o", "deep/out", "--gpus", "1", "--json"]
    assert main([*COMMAND, *words]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["kind"]) == (1, "kserve")
    written = yaml.safe_load((here / "deep" / "out" / "inference-service.yaml").read_text())
    assert told["inference_service"] == written
    assert "Dockerfile" in told["files"]
    assert any("number of pods is fixed" in note for note in told["notes"])
    [container] = written["spec"]["predictor"]["containers"]
    assert container["image"] == "r/i:2"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(
    "words, said",
    [
        (["--replicas", "1:4"], "needs --prometheus URL"),
        (["--storage-uri", "models"], "expected a URI that KServe"),
        (["--name", "My_model"], "lower-case letters"),
        (["--busy", "0"], "--busy"),
    ],
)
def test_wrong_usage_is_one_line_and_2(here, capsys, words, said):
    assert main([*COMMAND, *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not (here / "my-model-kserve").exists()


def test_an_archive_that_is_not_there(here, capsys):
    assert main(["kserve", "none.mar", "--check", "check.json"]) == 2
    assert "no such archive: none.mar" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"name": "other"}, "the check is of other 1.0"),
        ({"sha256": "0" * 64}, "was rebuilt after it was checked; run the check again"),
        (
            {"loads": False, "failure": {"cause": "ValueError: no"}},
            "so it would not load in a pod either: ValueError: no",
        ),
        ({"memory": [], "findings": ["a request ended the process"]}, "a request ended the process"),
        ({"schema": 9}, "has schema 9"),
    ],
)
def test_a_check_that_does_not_do(here, capsys, changes, said):
    check = json.loads((here / "check.json").read_text())
    saved({**check, **changes}, here / "check.json")
    assert main(COMMAND) == 2
    assert said in capsys.readouterr().err


def test_the_check_of_this_very_archive(here):
    check = json.loads((here / "check.json").read_text())
    digest = hashlib.sha256((here / "My_model.mar").read_bytes()).hexdigest()
    saved({**check, "sha256": digest}, here / "check.json")
    assert main(COMMAND) == 0
    # The same model in another form is no other packing of it; its hash says nothing there.
    with zipfile.ZipFile(here / "My_model.mar") as archive:
        archive.extractall(here / "unpacked")
    assert main(["kserve", "My_model=unpacked", *COMMAND[2:], "-o", "again"]) == 0


@pytest.mark.parametrize("text", ["[]", "{}", "no json"])
def test_a_file_that_is_no_check(here, capsys, text):
    (here / "check.json").write_text(text)
    assert main(COMMAND) == 2
    assert "expected the output of `tsbatch check ARCHIVE --json`" in capsys.readouterr().err


def test_a_folder_that_is_there(here, capsys):
    (here / "my-model-kserve").mkdir()
    assert main(COMMAND) == 2
    assert "my-model-kserve exists" in capsys.readouterr().err
    assert main([*COMMAND, "--force"]) == 0


def test_the_commands_of_the_page_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mar = own_archive(tmp_path / "model_store", "embed")
    saved(check_of(mar, "embed"), tmp_path / "check.json")
    lines = re.findall(r"^tsbatch (kserve .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        assert main(shlex.split(line)) == 0, capsys.readouterr().err
    written = [yaml.safe_load(path.read_text()) for path in tmp_path.glob("*/inference-service.yaml")]
    assert len(written) == len(lines)
    assert [faults(one) for one in written] == [[]] * len(lines)
