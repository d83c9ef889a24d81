from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from tsbatch.system.processes import MARK, ProcessRef, detached, end_marked, marked

SLEEP = "import time; time.sleep(60)"


@pytest.fixture
def sleeper():
    started = []

    def start(code=SLEEP, **env):
        started.append(subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **env}, **detached()))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_reference_knows_its_process_from_another_with_its_id(sleeper):
    process = sleeper()
    reference = ProcessRef.of(process.pid)
    assert reference.running()
    assert not ProcessRef(reference.pid, reference.created - 10).running()
    assert not reference.wait_gone(0.1)


def test_a_zombie_does_not_run(sleeper):
    process = sleeper()
    reference = ProcessRef.of(process.pid)
    reference.terminate()
    assert reference.wait_gone(5)
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    reference.terminate()


def test_marked_processes_end_with_their_grandchildren(sleeper, tmp_path):
    parent = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True).wait()"
    )
    first = sleeper(parent, **{MARK: str(tmp_path)})
    other = sleeper(**{MARK: f"{tmp_path}-other"})
    deadline = time.monotonic() + 10
    while len(marked(str(tmp_path))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(marked(str(tmp_path))) == 2
    end_marked(str(tmp_path))
    assert marked(str(tmp_path)) == []
    assert first.poll() is not None
    assert other.poll() is None
