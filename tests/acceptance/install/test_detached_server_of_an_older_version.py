"""A server that an older version started and left behind is found, used and stopped; its archives are read.

The older version is the commit before the modules moved. It is taken out of the clone, so a shallow clone has to skip.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import psutil
import pytest

from tests.surface.commands import main
from tests.surface.outputs import OLD
from tests.surface.saying import said

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
COMMIT = "c6816b7"
SECONDS = 180


@pytest.fixture(scope="module")
def older(tmp_path_factory):
    """The older version's source."""
    taken = subprocess.run(
        ["git", "archive", "--format=tar", COMMIT, "src", "handlers"], cwd=ROOT, capture_output=True, check=False
    )
    if taken.returncode:
        pytest.skip(f"this clone has no commit {COMMIT}: {taken.stderr.decode(errors='replace').strip()}")
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(taken.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The old files in the present folder, and state files where nobody else looks."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def as_older(older, *words):
    """What the older version prints."""
    done = subprocess.run(
        [sys.executable, "-m", "tsbatch", *words, "--json"],
        env={**os.environ, "PYTHONPATH": str(older / "src")},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def told(*words):
    """What this version prints."""
    done = said(main(), [*words, "--json"])
    assert done.code == 0, done.err
    return json.loads(done.out)


def of_the_server(work):
    """The processes that run and carry its mark."""
    return [process for process in psutil.process_iter() if runs(process) and mark_of(process) == work]


def runs(process):
    """Whether it does; an orphan that nobody waits for stays in the table where there is no proper init."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def mark_of(process):
    """The work folder of the server that it belongs to."""
    try:
        return process.environ().get("TSBATCH_SERVER")
    except (psutil.Error, OSError):
        return None


def code_of(process):
    """The folder that a process takes the older version from, as far as its environment tells."""
    return process.environ().get("PYTHONPATH", "")


def test_it_is_found_used_and_stopped(older, place):
    started = as_older(older, "serve", "rows.mar", "--detach", "--log-dir", "logs-of-older", "--name", "older")
    state = json.loads((place / "state" / "older.json").read_text())
    try:
        mine = [*of_the_server(state["work_dir"]), psutil.Process(state["owner"]["pid"])]
        assert started["pid"] in [process.pid for process in mine]
        assert all(str(older) in code_of(process) for process in mine)

        (rows,) = told("models", "--name", "older")["models"]
        assert (rows["name"], rows["version"], rows["workers"]) == ("rows", "1.0", 1)
        found = told("register", "doubling.mar", "--name", "older")
        assert (found["name"], found["version"]) == ("doubling", "2.0")
        words = ["--data", "rows.jsonl", "--requests", "8", "--concurrency", "2", "--warm-up", "0"]
        assert told("bench", "rows", *words, "--name", "older")["summary"][0]["failed"] == 0
        assert told("scale", "rows", "--workers", "2", "--name", "older")["workers"] == 2
    finally:
        stopped = said(main(), ["stop", "--name", "older", "--json"])
    assert stopped.code == 0, stopped.err
    assert json.loads(stopped.out)["stopped"] == ["older"]
    assert not [*of_the_server(state["work_dir"]), *filter(runs, mine)]
    assert not Path(state["work_dir"]).exists()
    assert list((place / "state").iterdir()) == []


def test_one_that_was_killed_is_cleaned_up(older, place):
    as_older(older, "serve", "rows.mar", "--detach", "--name", "older")
    state = json.loads((place / "state" / "older.json").read_text())
    psutil.Process(state["owner"]["pid"]).kill()
    psutil.Process(state["process"]["pid"]).kill()
    assert said(main(), ["models", "--name", "older"]).code == 3
    assert not of_the_server(state["work_dir"])
    assert not Path(state["work_dir"]).exists()
    assert list((place / "state").iterdir()) == []


def test_an_archive_that_brings_the_older_version_along_loads(older, place):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        shutil.unpack_archive(place / "old" / "doubling.mar", place / "unpacked", "zip")
        words = ["--handler", "unpacked/doubling.py", "--name", "bundled", "--bundle", "--output", "."]
        as_older(older, "package", *words)
        assert told("verify", "bundled.mar")["ok"]
        (place / "requests.jsonl").write_text("1\n2.5\n")
        done = said(main(), ["run", "bundled.mar", "--data", "requests.jsonl"])
        assert done.code == 0, done.err
        assert [json.loads(line)["body"] for line in done.out.splitlines()] == [2.0, 5.0]
        assert told("check", "bundled.mar", "--one-worker")["loads"]
