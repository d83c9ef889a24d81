"""``tsbatch tune`` on a real TorchServe, as short as it can be; the long ones are in tests/acceptance."""

from __future__ import annotations

import json
import sys

import psutil
import pytest

from tests.acceptance.regimes import OURS
from tests.e2e.support import make_archive
from tsbatch.cli.program import main
from tsbatch.serving import instance as instances
from tsbatch.serving.server import Server

CONFIG = """
minWorkers: 1
maxWorkers: 1
batchSize: 8
maxBatchDelay: 300
responseTimeout: 60
startupTimeout: 120
handler:
  fixed: 20
  each: 1
"""

pytestmark = [pytest.mark.alone, pytest.mark.slow]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return make_archive(tmp_path_factory.mktemp("tune"), "sleeper", OURS, config=CONFIG)


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("1\n2\n3\n")
    return path


def tune(capsys, *words):
    short = ["--concurrency", "4", "--duration", "1", "--warm-up", "0.5", "--json"]
    code = main(["tune", *map(str, words), *short, *([] if "--offline" in words else ["--budget", "8"])])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def java():
    """The servers of this environment; another one on the machine may have its own."""
    found = psutil.process_iter(["name", "cmdline"])
    return {
        one.pid for one in found if one.info["name"] == "java" and sys.prefix in " ".join(one.info["cmdline"] or [])
    }


def test_a_private_copy_finds_that_nobody_need_wait_and_leaves_nothing(archive, data, tmp_path, capsys):
    before = java()
    told = tune(capsys, archive, "--data", data, "--output", tmp_path / "out", "--write", "--p99", "1s")
    step = told["steps"][0]
    assert (step["setting"], step["verdict"]) == ("maxBatchDelay", "kept")
    assert told["recommended"]["delay"] < 300
    assert told["expected"]["p99"]["value"] < 200
    assert f"maxBatchDelay: {told['recommended']['delay']}\n" in (tmp_path / "out" / "model-config.yaml").read_text()
    assert "fixed: 20" in (tmp_path / "out" / "model-config.yaml").read_text()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "journal.jsonl",
        "log.txt",
        "model-config.yaml",
        "report.html",
    }
    assert not [name for name in instances.names() if name.startswith("tune")]
    assert java() <= before


@pytest.fixture(scope="module")
def running(archive):
    with Server.start(name="tuned-e2e", models=[archive]) as server:
        yield server


def settings_and_workers(server):
    with server.management() as management:
        described = management.describe("sleeper")
    kept = {key: described[key] for key in ("modelVersion", "batchSize", "maxBatchDelay", "minWorkers", "modelUrl")}
    return kept, {worker["pid"] for worker in described["workers"]}


def test_a_running_model_is_tuned_on_a_copy_and_stays_as_it_is(running, data, tmp_path, capsys):
    before = settings_and_workers(running)
    told = tune(capsys, "sleeper", "--name", "tuned-e2e", "--data", data, "--output", tmp_path / "out")
    assert told["steps"][0]["verdict"] == "kept"
    assert told["recommended"]["delay"] < 300
    assert settings_and_workers(running) == before
    assert before[0]["maxBatchDelay"] == 300


def test_offline_measures_what_there_is_and_ranks_the_rest(archive, data, tmp_path, capsys):
    told = tune(capsys, archive, "--data", data, "--output", tmp_path / "out", "--offline")
    ranked = told["settings"]
    assert told["kind"] == "ranking"
    assert len({tuple(one["knobs"].values()) for one in ranked}) == len(ranked) > 20
    rates = [one["figures"]["throughput"] for one in ranked if one["keeps_limits"]]
    assert rates == sorted(rates, reverse=True)
    # 4 clients, 24 ms a batch of 4, and no need to wait for more.
    assert ranked[0]["knobs"]["delay"] < 300
    [now] = [one for one in ranked if one["knobs"] == {"workers": 1, "batch_size": 8, "delay": 300, "threads": None}]
    assert now["figures"]["p50"] == pytest.approx(324, rel=0.1)
