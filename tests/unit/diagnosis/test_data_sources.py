from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.diagnosis.log_lines import answered, flushing, told
from tests.unit.diagnosis.tables import lonely, queueing
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.diagnosis.data_sources import choose, from_result, in_a_row, of_model_log
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.regimes import Regime
from tsbatch.diagnosis.ts_log import read_log
from tsbatch.errors import UsageError


def run(samples, step=1.0, cpu=0.5):
    seconds = float((samples.sent + samples.latency / 1000).max())
    workers = [
        {"name": "worker 9000", "pid": 1, "cpu": cpu, "memory_rss": 2**30, "memory_private": 2**28},
        {"name": "server", "pid": 2, "cpu": 3.0, "memory_rss": 2**32, "memory_private": 2**32},
    ]
    return Run(
        started="",
        step=step,
        seconds=seconds,
        answered=len(samples),
        answered_items=1,
        samples=samples,
        workers=workers,
    )


def save(path, runs):
    settings = {"batchSize": 8, "maxBatchDelay": 100, "workers": 1}
    target = {"address": "http://h/predictions/m", "model": "m", "version": "1.0", "settings": settings}
    BenchResult(target=target, plan={}, environment={"cores": 4}, runs=runs).save(path)
    return path


def test_a_load_tests_file(tmp_path):
    samples = replace(lonely(gap=1, delay=100, handler=20), worker=np.full(40, math.nan), capacity=np.full(40, 8.0))
    found = from_result(save(tmp_path / "r.json", [run(samples)]))
    assert found.finding.regime is Regime.SEQUENTIAL
    assert (found.known.model, found.known.batch_size, found.known.max_batch_delay) == ("m", 8, 100)
    assert (found.known.cores, found.known.worker_memory) == (4, 2**28)
    # 0.5 cores all the time, of which 20 in 122 ms are in the handler.
    assert found.known.worker_cores == pytest.approx(0.5 * 122 / 20, rel=0.01)
    assert found.remarks == []


def test_of_several_steps_the_last_and_all_its_repeats(tmp_path):
    calm, busy = lonely(gap=1, delay=100, handler=20), queueing(clients=8, size=1, handler=20)
    found = from_result(save(tmp_path / "r.json", [run(calm, 1.0), run(busy, 8.0), run(calm, 1.0), run(busy, 8.0)]))
    assert found.finding.regime is Regime.QUEUE
    assert found.evidence.requests == 2 * len(busy)
    assert found.remarks == ["only the last of 2 steps, 8, was diagnosed"]


def test_runs_follow_each_other_without_a_gap():
    part = lonely(gap=0, delay=0, handler=99, count=10)
    again = replace(part, sent=part.sent + 1000)
    joined = in_a_row([part, again])
    assert joined.sent.max() - joined.sent.min() == pytest.approx(1.9, abs=0.02)


def test_results_without_information(tmp_path):
    with pytest.raises(UsageError, match="no run in it"):
        from_result(save(tmp_path / "r.json", []))
    (tmp_path / "x.json").write_text('{"schema": 1}')
    with pytest.raises(UsageError, match="is not a load test result"):
        from_result(tmp_path / "x.json")


@pytest.fixture
def folder(tmp_path):
    lines = []
    for model, worker, count in (("a_1.0", 9000, 3), ("b_1.0", 9001, 5), ("b_2.0", 9002, 4)):
        for number in range(count):
            at, job = 100 * number, f"{model}{number}"
            lines += flushing(at, worker=worker, model=model) + told(at + 40, [job], "40", worker=worker, model=model)
            lines += answered(at + 42, job, 0.1, 42, worker=worker, model=model)
    (tmp_path / "ts_log.log").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


def test_a_log_folder_and_its_busiest_model(folder):
    busiest, *others = read_log(folder)
    found = of_model_log(busiest, Known(), others=others)
    assert (found.known.model, found.known.version, found.known.workers) == ("b", "1.0", 1)
    assert found.remarks == ["the log also has requests of b/2.0 (4), a/1.0 (3); choose with --model"]
    assert found.to_json()["regime"] == "idle"


def test_a_model_of_a_log_folder(folder):
    logs = read_log(folder)
    assert of_model_log(choose(logs, "a"), Known()).evidence.requests == 3
    assert of_model_log(choose(logs, "b/2.0"), Known()).known.version == "2.0"
    with pytest.raises(UsageError, match=r"has no requests of c; it has requests of: b/1\.0, b/2\.0, a/1\.0"):
        choose(logs, "c")
