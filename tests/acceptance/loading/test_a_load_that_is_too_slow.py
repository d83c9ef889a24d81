"""A load of 25 s with startupTimeout 10 is told soon, in one line, with a value that is enough."""

from __future__ import annotations

import re
import time
from datetime import datetime

import pytest

from tests.acceptance.broken import PLAIN, write
from tests.e2e.support import log_text
from tsbatch.cli.program import main

SECONDS = 25
SLEEPS = PLAIN.format(initialize=f"import time; time.sleep({SECONDS})")
CONFIG = (
    "minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 20\nresponseTimeout: 60\nstartupTimeout: {timeout}\n"
)
GAVE_UP = re.compile(r"^(\S+) \[ERROR\] W-\d+-slow_1\.0 \S+WorkerThread - Backend worker error")


@pytest.fixture(scope="module")
def server(server_factory):
    with server_factory() as server:
        yield server


@pytest.fixture
def run(capfd):
    def run(*words):
        capfd.readouterr()
        code = main([str(word) for word in words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def gave_up_at(server) -> float:
    """When TorchServe stopped waiting, in seconds since the epoch, by its own log."""
    matches = filter(None, map(GAVE_UP.match, log_text(server, "ts_log.log").splitlines()))
    (first, *_) = [datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S,%f").astimezone() for match in matches]
    return first.timestamp()


def value_in(line: str) -> int:
    return int(re.search(r"set startupTimeout to at least (\d+)", line)[1])


def loads_with(value, folder, server, run):
    archive = write(folder, "slow", SLEEPS, config=CONFIG.format(timeout=value))
    assert run("register", archive, "--name", server.instance.name)[0] == 0
    assert run("unregister", "slow", "--name", server.instance.name)[0] == 0


def test_line_5_it_is_told_soon_and_the_value_is_enough(server, tmp_path, run, record_property):
    archive = write(tmp_path, "slow", SLEEPS, config=CONFIG.format(timeout=10))
    code, out, err = run("register", archive, "--name", server.instance.name)
    after = time.time() - gave_up_at(server)
    assert code == 3
    (line,) = (out + err).splitlines()
    assert "loading took over 10 s (startupTimeout)" in line
    assert after < 5
    with server.management() as management:
        assert "slow" not in management.models()
    value = value_in(line)
    loads_with(value, tmp_path, server, run)
    record_property("told after TorchServe gave up (s)", f"{after:.1f}")
    record_property("value named without a check", value)


def test_line_5_with_a_check_before_the_value_is_measured(server, tmp_path, run, record_property):
    archive = write(tmp_path, "slow", SLEEPS, config=CONFIG.format(timeout=10))
    assert run("check", archive, "--one-worker")[0] == 1  # its own time-out is too short: a finding
    code, _, err = run("register", archive, "--name", server.instance.name)
    assert code == 3
    line = err.splitlines()[-1]
    assert re.search(r"loading took over 10 s \(startupTimeout\); in-process it took 2[5-9] s", line), line
    value = value_in(line)
    assert 40 <= value < 120
    loads_with(value, tmp_path, server, run)
    record_property("value named after a check", value)


def test_line_5_scale_says_it_too(server, tmp_path, run):
    then_slow = "import os, time; time.sleep(15 if os.path.exists('first') else 0); open('first', 'w')"
    slow_later = PLAIN.format(initialize=then_slow)
    archive = write(tmp_path, "later", slow_later, config=CONFIG.format(timeout=5))
    assert run("register", archive, "--name", server.instance.name)[0] == 0
    code, _, err = run("scale", "later", "--workers", "2", "--name", server.instance.name)
    assert code == 3
    assert "loading took over 5 s (startupTimeout); set startupTimeout to at least 120" in err
    assert "its number of workers stays at 1" in err
