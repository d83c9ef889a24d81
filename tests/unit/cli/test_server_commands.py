from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from tsbatch.cli import server_commands
from tsbatch.cli.program import main
from tsbatch.operations import registration


@pytest.mark.parametrize("verb", ["serve", "stop", "register", "models", "scale", "unregister"])
def test_every_verb_is_there(verb, capsys):
    assert main([verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert "--json" in told
    assert "--name" in told


@pytest.mark.parametrize(
    "words, message",
    [
        (["serve", "--models", "none.mar"], "no such archive: none.mar"),
        (["serve", "--model-store", "nowhere"], "the model store nowhere is not a folder"),
        (["serve", "--config", "none.properties"], "cannot read none.properties"),
        (["serve", "--name", "a/b"], "invalid instance name"),
        (["stop"], "no server named 'default' is running (running: none)"),
        (["models"], "no server named 'default' is running"),
        (["register", "x.mar", "--batch-size", "0"], "--batch-size"),
        (["register", "x.mar", "--default", "--initial-workers", "0"], "--default needs a worker"),
        (["register", "x.mar", "--server", "localhost:8081"], "expected a management address like http://"),
        (["models", "--server", "http://[::1"], "expected a management address like http://"),
        (["models", "--server", "http://127.0.0.1:99999"], "expected a management address like http://"),
        (["serve", "--models", __file__], f"{__file__} is not a model archive"),
        (["serve", "--models", "x" * 5000], "File name too long"),
        (["scale", "m", "--workers", "-1"], "--workers"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path))
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("token", ["a\nb", "é"])
def test_a_token_that_cannot_be_one(monkeypatch, capsys, token):
    monkeypatch.setenv("TSBATCH_TOKEN", token)
    assert main(["models", "--server", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("tsbatch: TSBATCH_TOKEN contains")


def test_stop_all_when_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path))
    assert main(["stop", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "stopped": []}


@pytest.mark.parametrize(
    "where, place",
    [([], ""), (["--name", "mine"], " --name mine"), (["--server", "http://h:1"], " --server http://h:1")],
)
def test_a_version_that_takes_over_tells_how_the_old_one_goes(monkeypatch, capsys, where, place):
    asked = []

    def register(management, archive, **options):
        asked.append(options["default"])
        model = {"modelName": "m", "modelVersion": "2.0", "minWorkers": 1, "batchSize": 8, "maxBatchDelay": 10}
        return registration.Registered({**model, "workers": [{"status": "READY"}]}, replaced="1.0")

    monkeypatch.setattr(registration, "register", register)
    monkeypatch.setattr(server_commands, "connect", lambda name, server: nullcontext(("api", None)))
    assert main(["register", "m.mar", "--default", *where]) == 0
    out, err = capsys.readouterr()
    assert asked == [True]
    assert "2.0" in out
    assert err.splitlines()[-1].endswith(f"when it is idle, run: tsbatch unregister m --version 1.0{place}")
    assert main(["register", "m.mar", "--default", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["replaced"] == "1.0"
