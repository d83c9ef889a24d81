from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tsbatch.errors import ServerError, UsageError
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import Instance
from tsbatch.system.processes import MARK, ProcessRef, own_process
from tsbatch.system.state_directory import state_folder


@pytest.fixture(autouse=True)
def states(tmp_path, monkeypatch):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path / "states"))
    return tmp_path / "states"


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "tsbatch-work"
    folder.mkdir()
    return folder


@pytest.fixture
def sleeper(work):
    env = {**os.environ, MARK: str(work)}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def instance(work, sleeper):
    return Instance(
        name="mine",
        process=ProcessRef.of(sleeper.pid),
        owner=own_process(),
        work_dir=work,
        log_dir=work / "logs",
        model_store=work / "store",
        private_store=True,
        token_lifetime=0,
        inference_address="http://127.0.0.1:1",
        management_address="http://127.0.0.1:2",
        metrics_address="http://127.0.0.1:3",
        grpc_inference_address="127.0.0.1:4",
    )


def test_what_was_saved_is_found_and_is_private(instance, states):
    instance.save()
    assert instances.find("mine") == instances.load("mine") == instance
    assert states.stat().st_mode & 0o077 == 0
    assert (states / "mine.json").stat().st_mode & 0o077 == 0
    assert [path.name for path in states.iterdir()] == ["mine.json"]
    assert instances.names() == ["mine"]


def test_stop_ends_the_processes_and_removes_folder_and_file(instance, sleeper, states, work):
    instance.save()
    instance.stop()
    assert sleeper.wait(1) != 0
    assert not work.exists()
    assert instances.names() == []


def test_a_dead_one_is_told_once_and_cleaned(instance, sleeper, work):
    instance.save()
    sleeper.kill()
    sleeper.wait()
    with pytest.raises(ServerError, match=f"process {sleeper.pid}.* ended unexpectedly"):
        instances.find("mine")
    assert not work.exists()
    with pytest.raises(UsageError, match="no server named 'mine' is running \\(running: none\\)"):
        instances.find("mine")


def test_a_pid_used_again_is_not_the_server(instance):
    replace(instance, process=ProcessRef(instance.process.pid, instance.process.created - 100)).save()
    assert not instances.running_here("mine")
    assert instances.load("mine") is None


def test_a_server_that_took_the_name_over_keeps_its_file(instance):
    other = replace(instance, process=own_process())
    other.save()
    instance.forget()
    assert instances.load("mine") == other


def test_only_a_work_folder_is_ever_removed(instance, tmp_path):
    keep = tmp_path / "precious"
    keep.mkdir()
    replace(instance, work_dir=keep).clean()
    assert keep.exists()


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65])
def test_names_that_are_no_names(name):
    with pytest.raises(UsageError, match="invalid instance name"):
        instances.load(name)


@pytest.mark.parametrize("text, message", [("{", "cannot read the state file"), ('{"schema": 99}', "another version")])
def test_state_files_that_cannot_be_read(states, text, message):
    states.mkdir()
    (states / "mine.json").write_text(text)
    with pytest.raises(ServerError, match=message):
        instances.load("mine")


def test_where_state_files_lie(monkeypatch, tmp_path):
    monkeypatch.delenv("TSBATCH_STATE_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert state_folder() == tmp_path / "tsbatch"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert state_folder() == tmp_path / "state" / "tsbatch"


def test_the_file_says_its_schema_and_no_token(instance, states):
    instance.save()
    assert json.loads((states / "mine.json").read_text())["schema"] == 1
