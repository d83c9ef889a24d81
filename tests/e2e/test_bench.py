"""A load test of a real TorchServe, by its name, with tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.e2e import timing
from tsbatch.bench.result_file import BenchResult
from tsbatch.cli.program import main

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server(server_factory, tmp_path_factory):
    archives = timing.archives(tmp_path_factory.mktemp("bench"))
    with server_factory(models=archives) as server:
        timing.warm_up(server, 2000)
        yield server


def test_a_model_by_its_name(server, tmp_path, capsys):
    data, file = tmp_path / "data.jsonl", tmp_path / "a.json"
    data.write_text('{"inputs": [1, "b", 3]}\n{"inputs": "x"}\n')
    words = ["--name", server.instance.name, "--data", str(data), "--concurrency", "16", "--output", str(file)]
    assert main(["bench", "eight", *words, "--warm-up", "1", "--duration", "3"]) == 0
    told = capsys.readouterr().out
    assert "eight 1.0: closed loop, 16 clients; batchSize 8, maxBatchDelay in ms 100, workers 1" in told
    result = BenchResult.load(file)
    (run,) = result.runs
    assert run.errors == []
    assert {key: result.target["settings"][key] for key in ("batchSize", "maxBatchDelay", "workers")} == {
        "batchSize": 8,
        "maxBatchDelay": 100,
        "workers": 1,
    }
    # 16 clients keep two batches of 8 going, each 40 ms and a little.
    samples = run.samples
    assert 100 < run.answered / run.seconds < 200
    assert np.median(samples.batch) == 8
    assert set(samples.capacity) == {8}
    explained = samples.queue + samples.assembly + samples.handler
    # Java is hardly warm here, and the machine may be busy; the acceptance test of the split is stricter.
    assert np.mean(np.abs(samples.latency - explained) <= 15) >= 0.9
    assert (explained < samples.latency + 1).all(), "no part began before its request was sent"
    assert np.median(samples.inference) == pytest.approx(timing.BATCH, abs=3)
    names = {one["name"]: one for one in run.workers}
    assert set(names) == {"server", f"worker {next(iter(names)).split()[-1]}"}
    assert all(one["memory_rss"] > 50_000_000 and not one["gone"] for one in run.workers)
    assert "Bearer" not in file.read_text()


def test_a_model_that_is_not_there(server, tmp_path, capsys):
    data = tmp_path / "data.txt"
    data.write_text("x\n")
    assert main(["bench", "none", "--name", server.instance.name, "--data", str(data)]) == 2
    error = capsys.readouterr().err
    assert "the server has: eight, one, quick" in error
    address = f"{server.inference_address}/predictions/eight"
    assert main(["bench", address, "--data", str(data)]) == 2
    error = capsys.readouterr().err
    assert "answered 400" in error
    assert "InvalidKeyException" in error


def test_the_settings_of_another_server_are_asked_for(server, tmp_path, capsys, monkeypatch):
    data = tmp_path / "data.jsonl"
    data.write_text("1\n")
    # Both addresses take tokens of their own; this server's inference token comes as a header.
    monkeypatch.setenv("TSBATCH_TOKEN", server.management_token)
    words = ["--server", server.management_address, "--data", str(data), "--warm-up", "0", "--requests", "8"]
    token = ["--header", f"Authorization: Bearer {server.inference_token}"]
    assert main(["bench", f"{server.inference_address}/predictions/one", *words, *token, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["target"]["model"], told["target"]["settings"]["batchSize"]) == ("one", 1)
    assert server.inference_token not in json.dumps(told)
