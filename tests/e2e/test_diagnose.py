"""diagnose, top and the dashboards on a real TorchServe; all regimes are in the acceptance tests."""

from __future__ import annotations

import contextlib
import json
import re
import threading

import pytest

from tests.dashboards import expressions, names_in
from tests.e2e import timing
from tests.e2e.support import request
from tsbatch.cli.exit_codes import FINE
from tsbatch.cli.program import main

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory):
    # In this mode TorchServe's metrics are at its metrics address, and ts_log.log tells of the requests all the same.
    archives = timing.archives(tmp_path_factory.mktemp("diagnose"))
    server = server_factory(models=archives, properties={"metrics_mode": "prometheus"})
    timing.load(server, "eight", 8, 2)
    for _ in range(12):
        timing.load(server, "eight", 1)
    yield server
    server.stop()


@contextlib.contextmanager
def meanwhile(action):
    timer = threading.Timer(0.5, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def run(capsys, *words):
    assert main([*words, "--json"]) == FINE
    return json.loads(capsys.readouterr().out)


def test_a_running_server_is_diagnosed_from_its_log(server, capsys):
    found = run(capsys, "diagnose", "--name", server.instance.name)
    assert (found["model"], found["known"]["batch_size"], found["known"]["workers"]) == ("eight", 8, 1)
    assert found["evidence"]["requests"] == 28
    parts = {part["name"]: part for part in found["split"]["parts"]}
    assert parts["assembly"]["p99"] == pytest.approx(timing.DELAY, abs=15)
    assert parts["handler"]["p50"] == pytest.approx(timing.BATCH, abs=15)


def test_single_requests_pay_the_delay_and_the_advice_is_to_lower_it(server, capsys, tmp_path):
    text = (server.log_dir / "ts_log.log").read_bytes()
    # After the first loads: the requests that came alone.
    lines = text.splitlines(keepends=True)
    flushes = [
        number for number, line in enumerate(lines) if b"Flushing req.cmd PREDICT" in line and b"-eight_" in line
    ]
    path = tmp_path / "ts_log.log"
    path.write_bytes(b"".join(lines[flushes[-23] :]))
    found = run(capsys, "diagnose", str(path))
    assert found["regime"] in ("idle", "sequential client")
    assert found["advice"]["change"]["setting"] == "maxBatchDelay"
    assert found["advice"]["change"]["old"] == pytest.approx(timing.DELAY, abs=10)


def test_prometheus_sums_give_means(server, capsys):
    with meanwhile(lambda: timing.load(server, "one", 4, 3)):
        found = run(capsys, "diagnose", f"{server.metrics_address}/metrics", "--seconds", "3")
    assert (found["model"], found["evidence"]["requests"], found["regime"]) == ("one", 12, "queue-bound")
    assert found["evidence"]["handler"] == pytest.approx(timing.BATCH, abs=15)


def test_top_shows_what_just_happened(server, capsys):
    with meanwhile(lambda: timing.load(server, "one", 4, 3)):
        found = run(capsys, "top", "--once", "--seconds", "3", "--name", server.instance.name)
    rows = {row["model"]: row for row in found["models"]}
    assert (rows["one"]["ready"], rows["one"]["wanted"], rows["one"]["places"]) == (1, 1, 100)
    assert rows["one"]["rate"] > 0
    assert rows["one"]["handler"] == pytest.approx(timing.BATCH, abs=15)
    assert rows["one"]["memory"] > 50 * 2**20
    assert rows["eight"]["rate"] is None


def test_a_load_tests_file(server, capsys, tmp_path):
    data, result = tmp_path / "data.jsonl", tmp_path / "result.json"
    data.write_text("1\n")
    words = ["--data", str(data), "--concurrency", "1", "--duration", "3", "--warm-up", "0.5", "--output", str(result)]
    run(capsys, "bench", "eight", *words, "--name", server.instance.name)
    found = run(capsys, "diagnose", str(result))
    assert (found["model"], found["regime"]) == ("eight", "sequential client")
    assert found["advice"]["change"] == {"setting": "maxBatchDelay", "old": timing.DELAY, "new": 1}
    assert found["known"]["worker_cores"] < 0.5  # it sleeps
    stages = {part["name"]: part["mean"] for part in found["split"]["stages"]}
    assert stages["inference"] == pytest.approx(timing.BATCH, abs=15)


def test_every_metric_of_the_dashboards_exists(server):
    page = request(server.metrics_address, "GET", "/metrics").body.decode()
    there = set(re.findall(r"^# TYPE (\w+) ", page, re.MULTILINE))
    for where, expression in expressions():
        assert names_in(expression) <= there, where
