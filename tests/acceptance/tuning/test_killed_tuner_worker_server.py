"""The tuner, a worker or the server is killed twenty times at random moments.

The settings that were found are back (after SIGKILL by --restore), the journal is gone on with, and nothing private is
left running.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.acceptance.support import wait_for
from tests.acceptance.tuned import numbers, sleeper, tune
from tests.e2e.support import worker_pids
from tsbatch.cli.program import main
from tsbatch.serving import instance as instances
from tsbatch.serving.server import Server
from tsbatch.system.processes import MARK
from tsbatch.system.state_directory import state_folder
from tsbatch.tuning.journal import read_lines
from tsbatch.tuning.search_space import ModelSettings

FOUND = ModelSettings(workers=2, batch_size=16, delay=100)
SHORT = ("--concurrency", "8", "--duration", "1", "--warm-up", "0.3", "--budget", "12")
CASES = [
    *[("tuner", "live", one) for one in ("SIGINT", "SIGTERM", "SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "SIGKILL")],
    *[("tuner", "private", one) for one in ("SIGINT", "SIGTERM", "SIGKILL", "SIGKILL", "SIGKILL")],
    *[("worker", "live", "SIGKILL")] * 3,
    *[("worker", "private", "SIGKILL")] * 2,
    *[("server", "private", "SIGKILL")] * 2,
    ("server", "live", "SIGKILL"),
]
assert len(CASES) == 20


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return sleeper(tmp_path_factory.mktemp("sleeper"), FOUND, fixed=20, each=2)


@pytest.fixture(scope="module")
def servers(archive) -> Iterator[list[Server]]:
    """The server in use; another one takes its place when it was killed."""
    running = [Server.start(name="in-use", models=[archive])]
    yield running
    running[0].stop()


@contextmanager
def tuner(words, log):
    with log.open("wb") as file:
        process = subprocess.Popen([sys.executable, "-m", "tsbatch", "tune", *words], stdout=file, stderr=file)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def current_settings(server) -> ModelSettings:
    with server.management() as management:
        described = management.describe("sleeper")
        assert len(management.versions("sleeper")) == 1
    return ModelSettings(described["minWorkers"], described["batchSize"], described["maxBatchDelay"])


def private_ones() -> list[str]:
    return [name for name in instances.names() if name.startswith("tune-")]


def marked_by_others(server) -> list[int]:
    """Processes of any server that was started from here but the one in use."""
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
        except (psutil.Error, OSError):
            continue
        mark = variables.get(MARK, "")
        if variables.get("TSBATCH_STATE_DIR") != os.environ["TSBATCH_STATE_DIR"]:
            continue  # somebody else's tests
        if mark and mark != str(server.instance.work_dir) and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def victim(what, where, process, server):
    """Whom to kill, as soon as there is somebody."""
    if what == "tuner":
        return process.pid
    if where == "live":
        return server.pid if what == "server" else wait_for(lambda: worker_pids(server, "sleeper"), 60)[0]
    name = f"tune-{process.pid}"
    private = wait_for(lambda: instances.load(name), 60)
    java = psutil.Process(private.process.pid)
    if what == "server":
        return java.pid
    return wait_for(lambda: [one for one in java.children(recursive=True) if "worker" in " ".join(one.cmdline())], 60)[
        0
    ].pid


@pytest.mark.parametrize("number", range(len(CASES)))
def test_killed(number, archive, servers, tmp_path, capsys, record_property):
    what, where, name = CASES[number]
    server, chance = servers[0], random.Random(number)
    live = ["sleeper", "--live", "--name", "in-use"] if where == "live" else [str(archive)]
    words = [*live, "--data", str(numbers(tmp_path)), "--output", str(tmp_path / "out"), *SHORT]
    moment = chance.uniform(0.0, 25.0)
    record_property(f"case_{number:02}", f"{name} to the {what}, {where}, after {moment:.1f} s")
    with tuner(words, tmp_path / "log") as process:
        # Until it says its first word it has touched nothing, and Python itself ends it.
        assert wait_for(lambda: (tmp_path / "log").stat().st_size, 60)
        time.sleep(moment)
        if process.poll() is None:
            os.kill(victim(what, where, process, server), getattr(signal, name))
        if what == "worker":  # the tuning goes on; it need not come to its end here
            time.sleep(8)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        code = process.wait(120)
    said = (tmp_path / "log").read_text(encoding="utf-8", errors="replace")
    assert "Traceback" not in said, said
    expected = {"SIGINT": {130, 0}, "SIGTERM": {130, 0}, "SIGKILL": {-9, 0}}[name] if what == "tuner" else {0, 3, 130}
    assert code in expected, said
    if (what, where) == ("server", "live"):
        servers[0].stop()
        servers[0] = server = Server.start(name="in-use", models=[archive])
    elif where == "live":
        if code == -signal.SIGKILL and state_folder().joinpath("in-use.tuning").exists():
            capsys.readouterr()
            assert main(["models", "--name", "in-use"]) == 0
            assert "tsbatch tune --restore --name in-use" in capsys.readouterr().err
            assert main(["tune", "--restore", "--name", "in-use"]) == 0
        assert not state_folder().joinpath("in-use.tuning").exists()
    assert current_settings(server) == FOUND
    assert wait_for(lambda: not private_ones(), 40), private_ones()
    assert wait_for(lambda: not marked_by_others(server), 40), marked_by_others(server)
    if number % 5 == 0:
        goes_on(words, tmp_path / "out", capsys, record_property, number)


def goes_on(words, folder, capsys, record_property, number):
    """The same command once more keeps what was measured and comes to its end."""
    before = read_lines(folder / "journal.jsonl")
    told = tune(capsys, *words)
    after = read_lines(folder / "journal.jsonl")
    assert after[: len(before)] == before
    record_property(f"resumed_{number:02}", f"{max(0, len(before) - 1)} of {told['runs']} runs were there")
    assert told["recommended"] is not None
