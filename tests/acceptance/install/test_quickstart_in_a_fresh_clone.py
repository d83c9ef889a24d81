"""A fresh clone, no Java: quickstart.py does it all and leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.acceptance.stranger import base_python, fresh_clone, interrupt, stranger, wait_for_text

NOTHING = {"processes": [], "ports": [], "files": []}
ROWS = ("total", "queue wait", "assembly wait", "handler time")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return fresh_clone(tmp_path_factory.mktemp("line1") / "tsbatch")


@pytest.fixture
def newcomer(tmp_path):
    with stranger(tmp_path, java=False) as one:
        assert shutil.which("java", path=one.env["PATH"]) is None
        yield one


def quickstart(clone, *words):
    return [base_python(), str(clone / "scripts" / "quickstart.py"), *words]


def numbers_of(said, row):
    return [
        float(number) for number in re.search(rf"^{row} +([\d.]+) +([\d.]+) +([\d.]+)$", said, re.MULTILINE).groups()
    ]


def test_it_runs_to_the_end_and_leaves_nothing(clone, newcomer, tmp_path, record_property):
    started = time.monotonic()
    code = newcomer.run(quickstart(clone), tmp_path / "log", minutes=25)
    said = (tmp_path / "log").read_text()
    assert code == 0, said
    record_property("seconds", round(time.monotonic() - started))

    pairs = [float(cosine) for cosine in re.findall(r"^  (0\.\d{3})  \S", said, re.MULTILINE)]
    assert len(pairs) >= 5
    assert pairs == sorted(pairs, reverse=True)
    assert pairs[0] > 0.7
    batches = {int(size): int(count) for size, count in re.findall(r"^  ([1-8]) +(\d+) +#*$", said, re.MULTILINE)}
    assert sum(size * count for size, count in batches.items()) == 196
    assert batches[8] > 0
    for row in ROWS:
        p50, p95, p99 = numbers_of(said, row)
        assert 0 <= p50 <= p95 <= p99
        record_property(f"{row} P50/P95/P99 ms", f"{p50} / {p95} / {p99}")
    assert re.search("^0 failures$", said, re.MULTILINE)

    assert len(newcomer.ports) >= 3, "the server was not seen"
    assert newcomer.left_behind() == NOTHING


def test_a_second_run_is_ready_at_once(clone, newcomer, tmp_path, record_property):
    started = time.monotonic()
    assert newcomer.run(quickstart(clone), tmp_path / "log", minutes=5) == 0
    assert "[setup]" not in (tmp_path / "log").read_text()
    record_property("seconds of a second run", round(time.monotonic() - started))


@pytest.mark.parametrize(
    "moment,number",
    [("starting TorchServe", "SIGINT"), ("registering", "SIGTERM"), ("sending", "SIGINT"), ("sending", "SIGHUP")],
)
def test_stopped_at_any_moment_it_leaves_nothing(clone, newcomer, tmp_path, moment, number):
    child = newcomer.start(quickstart(clone), tmp_path / "log")
    with newcomer.watching():
        wait_for_text(tmp_path / "log", moment, child, 300)
        assert interrupt(child, signal.Signals[number]) == 130
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert newcomer.left_behind() == NOTHING


def test_kept_its_curl_lines_outlive_the_tokens(clone, newcomer, tmp_path, record_property):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    code = newcomer.run(quickstart(clone, "--keep", "--token-minutes", "1"), tmp_path / "log", minutes=10)
    said = (tmp_path / "log").read_text()
    assert code == 0, said
    assert re.search("^0 failures$", said, re.MULTILINE)
    predict, describe = re.findall("^curl .*$", said, re.MULTILINE)
    (stop,) = re.findall(r"^\S*tsbatch stop .*$", said, re.MULTILINE)

    def shell(line):
        return subprocess.run(line, shell=True, env=newcomer.env, capture_output=True, text=True, check=False)

    def ask(line):
        return shell(f"{line} -s -o /dev/null -w '%{{http_code}}'").stdout

    (header,) = re.findall(r"@(\S*inference\.header)", predict)
    first = Path(header).read_text()
    assert (ask(predict), ask(describe)) == ("200", "200")

    time.sleep(75)
    assert ask(predict.replace(f"@{header}", f"'{first.strip()}'")) == "400", "the first token still works"
    assert Path(header).read_text() != first
    assert (ask(predict), ask(describe)) == ("200", "200")
    record_property("curl lines after 75 s with tokens of 60 s", "work")

    assert newcomer.processes()
    stopped = shell(stop)
    assert stopped.returncode == 0, stopped.stderr
    assert newcomer.left_behind() == NOTHING
