"""A worker's share of the cores, against a process table made of files."""

import os
import sys

import pytest
import torch

from tsbatch import threads
from tsbatch.threads import ThreadShare, running_workers


@pytest.fixture(autouse=True)
def same_threads_afterwards():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """This process, seen as a TorchServe worker; returns a function that adds processes to its table."""
    monkeypatch.setattr(sys, "argv", ["/site-packages/ts/model_service_worker.py", "--sock-type", "unix"])
    proc = tmp_path / "proc"

    def add(number, *, parent=None, folder=None, name="python"):
        place = proc / str(number)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{number} ({name}) S {parent or os.getppid()} 1 1 0 -1")
        (place / "cwd").symlink_to(folder or os.getcwd())

    add.proc = proc
    return add


def test_children_of_the_same_frontend_in_the_same_folder_are_siblings(worker, tmp_path):
    worker(10)
    worker(11, name="a) (b c")
    worker(12, folder=tmp_path)
    worker(13, parent=1)
    (worker.proc / "99").mkdir()
    (worker.proc / "self").mkdir()
    assert running_workers(worker.proc) == 2


def test_outside_a_worker_nobody_is_counted(worker, monkeypatch):
    worker(10)
    worker(11)
    monkeypatch.setattr(sys, "argv", ["script.py"])
    assert running_workers(worker.proc) == 1


@pytest.mark.parametrize(
    "setting, config, running, expected",
    [
        ("auto", {}, 1, 8),
        ("auto", {"minWorkers": 2}, 1, 4),
        ("auto", {"minWorkers": 2}, 4, 2),
        ("auto", {"minWorkers": 4}, 2, 2),
        ("auto", {}, 100, 1),
        (3, {"minWorkers": 4}, 4, 3),
    ],
)
def test_the_share(monkeypatch, setting, config, running, expected):
    monkeypatch.setattr(threads, "running_workers", lambda: running)
    share = ThreadShare(setting, config, 8)
    share.refresh()
    assert share.threads == torch.get_num_threads() == expected


def test_it_follows_when_workers_come_and_go(monkeypatch):
    now, running = [0.0], [1]
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(threads, "running_workers", lambda: running[0])
    share = ThreadShare("auto", {}, 8)
    seen = []
    for now[0], running[0] in [(0, 1), (5, 2), (11, 2), (12, 1), (22, 1)]:
        share.refresh()
        seen.append(torch.get_num_threads())
    assert seen == [8, 8, 4, 4, 8]
