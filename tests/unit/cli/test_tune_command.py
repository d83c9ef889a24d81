from __future__ import annotations

import pytest

from tsbatch.bench.send_times import Arrivals
from tsbatch.cli.program import main
from tsbatch.cli.tune_command import goal_of, traffic_of
from tsbatch.errors import UsageError
from tsbatch.tuning.measurement import Workload


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("1\n")
    return str(path)


@pytest.mark.parametrize(
    "words, says",
    [
        ([], "nothing to tune; expected: tsbatch tune NAME|MAR --data FILE"),
        (["m.mar", "--data", "DATA", "--rate", "5", "--concurrency", "3"], "different loads"),
        (["m.mar", "--data", "DATA", "--rate", "-5"], "--rate is -5"),
        (["m.mar", "--data", "DATA", "--rate", "nan"], "--rate is nan"),
        (["m.mar", "--data", "DATA", "--duration", "nan"], "--duration"),
        (["m.mar", "--data", "DATA", "--duration", "inf"], "--duration is inf"),
        (["m.mar", "--data", "DATA", "--warm-up", "nan"], "--warm-up"),
        (["m.mar", "--data", "DATA", "--p99", "fast"], "--p99 is fast; expected a time like 100ms"),
        (["m.mar", "--data", "DATA", "--max-gpu-memory", "0"], "--max-gpu-memory is 0; expected a share like 80%"),
        (["m.mar", "--data", "DATA", "--max-memory", "much"], "--max-memory is much; expected a size like 8GB"),
        (
            ["m.mar", "--data", "DATA", "--arrivals", "poisson"],
            "--arrivals would be ignored: it needs",
        ),
        (["m.mar", "--data", "DATA", "--concurrency", "2", "--arrivals", "uniform"], "--arrivals would be ignored"),
        (
            ["m.mar", "--data", "DATA", "--offline", "--write", "--search", "tpe", "--budget", "20"],
            "--search, --budget, --write would be ignored: --offline only",
        ),
        (["m.mar", "--data", "DATA", "--restore"], "MODEL, --data would be ignored: --restore only"),
        (["--restore", "--p99", "100ms"], "--p99 would be ignored"),
        (["m.mar", "--data", "DATA", "--rate", "5", "--arrivals", "bursts"], "no such archive: m.mar"),
        (["m.mar", "--data", "DATA", "--offline"], "no such archive: m.mar"),
        (["m.mar", "--data", "DATA", "--rate", "5", "--objective", "throughput"], "the throughput is fixed"),
        (["m.mar", "--data", "DATA", "--live"], "--live needs a model on a running server"),
        (["m.mar", "--data", "DATA"], "no such archive: m.mar"),
        (["m.mar", "--data", "missing.jsonl"], "missing.jsonl"),
        (["embed", "--data", "DATA", "--name", "nobody"], "no server named 'nobody'"),
        (["--restore", "--name", "nobody"], "no server named 'nobody'"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words, says, data, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["tune", *(data if word == "DATA" else word for word in words)]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("tune-*"))


def test_without_a_load_there_are_eight_clients():
    assert traffic_of(None, None, "poisson", 0).clients == 8
    assert traffic_of(None, 5.0, "uniform", 3).clients is None
    with pytest.raises(UsageError):
        traffic_of(1, 1.0, "poisson", 0)


def test_bursts_are_sent_as_bench_sends_them():
    workload = Workload(traffic=traffic_of(None, 5.0, "bursts", 3), bodies=[])
    ((_, _, arrivals),) = workload.plan(2).steps(0)
    assert arrivals == Arrivals("bursts", 5.0, seed=5)


def test_the_objective_follows_from_the_load():
    assert goal_of(None, "100ms", None, None, open_loop=False).objective == "throughput"
    assert goal_of(None, None, "1GB", None, open_loop=True).objective == "p99"
    assert goal_of("memory", None, None, None, open_loop=True).objective == "memory"


def test_some_of_each_gpu_stays_free_unless_told_otherwise():
    assert goal_of(None, None, None, None, open_loop=False).gpu_memory == 0.9
    assert goal_of(None, None, None, "75%", open_loop=False).gpu_memory == 0.75
