from __future__ import annotations

import json
import os
import signal

import pytest

from tsbatch.cli import main
from tsbatch.ops import commands_server as commands


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
        (["serve", "--model-store", "nowhere"], "the model store nowhere is no folder"),
        (["serve", "--config", "none.properties"], "cannot read none.properties"),
        (["serve", "--name", "a/b"], "is no instance name"),
        (["stop"], "no server named 'default' is running; running: none"),
        (["models"], "no server named 'default' is running"),
        (["register", "x.mar", "--batch-size", "0"], "--batch-size"),
        (["register", "x.mar", "--server", "localhost:8081"], "expected a management address like http://"),
        (["scale", "m", "--workers", "-1"], "--workers"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path))
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_stop_all_when_there_is_none(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path))
    assert main(["stop", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "stopped": []}


def test_a_signal_interrupts_once_and_the_handlers_come_back():
    def work(done):
        with commands.end_on_signals():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGINT)
                done.append("cleaned")

    before, done = signal.getsignal(signal.SIGTERM), []
    with pytest.raises(KeyboardInterrupt):
        work(done)
    assert done == ["cleaned"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_nohup_is_respected():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with commands.end_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
