"""A worker's share of the cores, while its siblings come and go."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tsbatch.worker import thread_share
from tsbatch.worker.thread_share import ThreadShare, running_workers


@pytest.fixture
def applied(monkeypatch):
    seen = []
    monkeypatch.setattr(thread_share, "apply_threads", seen.append)
    return seen


@pytest.fixture
def siblings(monkeypatch):
    """How many workers run, to be set by the test, and a clock."""
    state = {"running": 1, "now": 100.0, "looks": 0}

    def running():
        state["looks"] += 1
        return state["running"]

    monkeypatch.setattr(thread_share, "running_workers", running)
    monkeypatch.setattr(thread_share.time, "monotonic", lambda: state["now"])
    return state


def test_auto_follows_the_siblings(applied, siblings):
    share = ThreadShare("auto", {"minWorkers": 1}, 8)
    share.refresh()
    for running, expected in ((2, 4), (3, 2), (20, 1), (1, 8)):
        siblings["running"] = running
        siblings["now"] += 11
        share.refresh()
        assert share.threads == expected
    assert applied == [8, 4, 2, 1, 8]


def test_workers_that_are_planned_count_before_they_run(applied, siblings):
    share = ThreadShare("auto", {"minWorkers": 4}, 8)
    share.refresh()
    assert applied == [2]


def test_a_look_costs_nothing_most_of_the_time(applied, siblings):
    share = ThreadShare("auto", {}, 8)
    for _ in range(100):
        share.refresh()
    assert siblings["looks"] == 1
    assert applied == [8]


def test_a_number_stays(applied, siblings):
    share = ThreadShare(3, {"minWorkers": 4}, 8)
    for _ in range(3):
        siblings["now"] += 1e6
        share.refresh()
    assert applied == [3]
    assert siblings["looks"] == 0


def fake_process(proc, number, parent, cwd, name="python"):
    folder = proc / str(number)
    folder.mkdir()
    (folder / "stat").write_text(f"{number} ({name}) S {parent} 1 1 0")
    (folder / "cwd").symlink_to(cwd)


@pytest.fixture
def worker(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["/x/ts/model_service_worker.py"])
    proc = tmp_path / "proc"
    proc.mkdir()
    return proc


@pytest.mark.skipif(sys.platform == "win32", reason="/proc is Linux")
def test_siblings_are_the_children_of_the_same_frontend_in_the_same_folder(worker, tmp_path):
    here, parent = Path.cwd(), os.getppid()
    fake_process(worker, 1, parent, here)
    fake_process(worker, 2, parent, here, name="py) (thon")
    fake_process(worker, 3, parent, tmp_path)
    fake_process(worker, 4, parent + 1, here)
    (worker / "5").mkdir()
    (worker / "self").mkdir()
    assert running_workers(worker) == 2


def test_where_nothing_can_be_known_it_is_alone(worker, tmp_path, monkeypatch):
    assert running_workers(worker) == 1
    assert running_workers(tmp_path / "none") == 1
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert running_workers(worker) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in use cannot be removed elsewhere, or there is no /proc")
def test_the_model_folder_may_be_gone(worker, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    fake_process(worker, 1, os.getppid(), f"{folder} (deleted)")
    assert running_workers(worker) == 1
    fake_process(worker, 2, os.getppid(), f"{folder} (deleted)")
    assert running_workers(worker) == 2
