from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tsbatch.system import console


def test_json_is_one_line_on_stdout_and_nothing_is_added(capsys):
    console.emit_json({"schema": 1, "path": Path("a"), "values": np.array([1.5, 2.0], dtype=np.float32), "text": "ü\n"})
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    assert json.loads(captured.out) == {"schema": 1, "path": "a", "values": [1.5, 2.0], "text": "ü\n"}
    assert captured.err == ""


def test_what_has_no_json_form_is_refused():
    with pytest.raises(TypeError):
        console.emit_json({"value": object()})


def test_notes_go_to_stderr_unchanged(capsys):
    long = "[red]a/b[/red] " + "word " * 60
    console.say(long)
    captured = capsys.readouterr()
    assert captured.err == f"{long}\n"
    assert captured.out == ""


def test_a_table_keeps_every_cell_whole_in_a_pipe(capsys):
    long = "x" * 300
    console.table(["name", "workers"], [[long, 2], ["[b]", None]], title="Models")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["Models"], ["name", "workers"], [long, "2"], ["[b]", "-"]]


def test_numbers_stand_right(capsys):
    console.table(["value"], [[5], [12345]])
    assert capsys.readouterr().out.splitlines()[1:] == ["    5", "12345"]


def test_progress_in_a_pipe_is_lines_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    with console.progress("packing", total=3) as step:
        step.advance()
        step.advance(2)
        step.describe("checking")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == ["packing ...", "packing: 1 of 3, 0 s", "packing: 3 of 3, 0 s", "checking: 3 of 3, 0 s"]
    assert lines[4].startswith("checking: done in ")


def test_progress_is_silent_between_the_lines(capsys):
    with console.progress("counting") as step:
        for _ in range(1000):
            step.advance()
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_progress_on_a_terminal_is_a_bar(capsys, monkeypatch):
    terminal = Console(stderr=True, force_terminal=True, _environ={"TERM": "xterm"})
    monkeypatch.setattr(console, "console", terminal)
    with console.progress("packing", total=2) as step:
        step.advance()
        step.describe("checking")
    assert "checking" in capsys.readouterr().err


def test_an_error_inside_is_not_reported_as_done(capsys):
    with pytest.raises(ValueError, match="broken"), console.progress("packing"):
        raise ValueError("broken")
    assert "done" not in capsys.readouterr().err


def test_telling_is_silent_in_a_pipe_until_it_takes_long(capsys, monkeypatch):
    with console.telling() as tell:
        tell("registering")
        tell("loading")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(console, "PATIENCE", 0.0)
    with console.telling() as tell:
        tell("registering")
        tell("loading")
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["registering ...", "loading ..."]
    assert lines[2].startswith("loading: done in ")


def test_telling_says_nothing_when_there_was_nothing_to_tell(capsys):
    with console.telling():
        pass
    assert capsys.readouterr().err == ""
