"""One unpacked copy for all replicas of a node, whoever ends when."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path

import pytest

from tsbatch.errors import LoadError
from tsbatch.ray import shared_folder
from tsbatch.ray.shared_folder import SharedFolder, root


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def fill(folder):
    (folder / "weights").write_text("many")


def test_it_is_filled_once_and_removed_by_the_last():
    one = SharedFolder("key", fill)
    two = SharedFolder("key", lambda _: pytest.fail("filled twice"))
    assert one.path == two.path
    assert (one.path / "weights").read_text() == "many"
    one.release()
    one.release()
    assert two.path.is_dir()
    two.release()
    assert list(root().iterdir()) == []


def test_other_archives_have_their_own():
    one, two = SharedFolder("one", fill), SharedFolder("two", fill)
    assert one.path != two.path
    one.release()
    assert two.path.is_dir()
    two.release()


def test_what_failed_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError):
        SharedFolder("key", lambda folder: fill(folder) or 1 / 0)
    assert list(root().iterdir()) == []
    SharedFolder("key", fill).release()


def test_what_a_killed_replica_left_half_done_is_filled_anew():
    (root() / "key").mkdir()
    (root() / "key" / "half").write_text("")
    found = SharedFolder("key", fill)
    assert not (found.path / "half").exists()
    found.release()


def test_what_killed_replicas_of_other_archives_left_is_removed():
    held = SharedFolder("held", fill)
    abandoned = SharedFolder("abandoned", fill)
    abandoned._unlock()  # as the system does for a process that is gone
    SharedFolder("key", fill).release()
    assert held.path.is_dir()
    assert not abandoned.path.exists()
    held.release()
    assert list(root().iterdir()) == []


def fill_slowly(folder):
    (folder / "weights").write_text("half")
    time.sleep(0.003)
    fill(folder)


def work(folder, count, together, failures):
    """Take and release the same copy again and again, as replicas that come and go."""
    tempfile.tempdir = folder
    for turn in range(count):
        together.wait(20)  # nobody has the copy, and both want it
        found = SharedFolder("key", fill_slowly)
        if (found.path / "weights").read_text() != "many":
            failures.put(turn)
        time.sleep(0.002 * (turn % 2))
        found.release()


def test_replicas_that_come_and_go_at_once_never_see_half_of_it(temporary):
    context = multiprocessing.get_context("fork")
    together, failures = context.Barrier(2), context.Queue()
    workers = [context.Process(target=work, args=(str(temporary), 40, together, failures)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert failures.empty()
    assert list(root().iterdir()) == []


def test_a_folder_that_others_may_write_is_not_used(temporary):
    root().chmod(0o777)
    with pytest.raises(LoadError, match="others may write"):
        root()
    assert isinstance(shared_folder.COMPLETE, str)
    assert Path(temporary).is_dir()
