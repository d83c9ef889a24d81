"""State files: private, whole, and checked when they are read."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tsbatch.errors import ServerError
from tsbatch.system.processes import ProcessRef
from tsbatch.system.state_directory import read_state, write_private, write_state


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    process: ProcessRef
    folder: Path
    seconds: float = 2.0


STATE = State(process=ProcessRef(7, 1.5), folder=Path("a/b"))


def test_what_was_written_is_read(tmp_path):
    path = tmp_path / "deep" / "state.json"
    assert read_state(path, State) is None
    write_state(path, {"schema": 1, **asdict(STATE), "key of a later version": 1})
    assert read_state(path, State) == STATE
    assert [found.name for found in path.parent.iterdir()] == ["state.json"]


def test_a_file_without_a_schema_is_read(tmp_path):
    write_state(tmp_path / "state.json", asdict(STATE))
    assert read_state(tmp_path / "state.json", State) == STATE


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_owner_can_read_it(tmp_path):
    write_private(tmp_path / "old", "secret")
    (tmp_path / "open").touch(mode=0o666)
    write_private(tmp_path / "open", "secret")
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "cannot read the state file .*; remove it"),
        ("[1]", "cannot read the state file"),
        ("{}", r"\(process: Field required\); remove it"),
        ('{"process": {"pid": "x", "created": 1}, "folder": "a"}', r"\(process\.pid: Input should be a valid integer"),
        ('{"schema": 2}', "another version of tsbatch wrote .*state.json"),
    ],
)
def test_what_cannot_be_read_is_an_error_in_one_line(tmp_path, text, message):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ServerError, match=message) as caught:
        read_state(tmp_path / "state.json", State)
    assert "\n" not in str(caught.value)
