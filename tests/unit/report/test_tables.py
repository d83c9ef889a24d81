"""Tables of a report."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.report.results import make_run
from tsbatch.bench.result_tables import processes


def test_resource_usage_is_listed_by_run():
    table = processes([make_run(), make_run(turn=1)])
    assert table.columns == ["run", "process", "pid", "cores", "memory MB", "private MB"]
    assert table.rows[0] == [1, "worker 9000", 12, 0.97, 512, 200]
    assert table.rows[3] == [2, "server", 12, 0.97, 512, None]
    assert processes([make_run(told=False)]) is None


def test_gpu_memory_is_listed_if_any_is_used():
    run = make_run()
    worker, server = run.workers
    on_gpus = replace(run, workers=[{**worker, "memory_gpus": {"a": 2_000_000_000, "b": 1_000_000}}, server])
    table = processes([run, on_gpus])
    assert table.columns[-1] == "GPU MB"
    assert [row[-1] for row in table.rows] == [0, 0, 2001, 0]
