"""A result for people."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.bench.pairs import latencies, result_of, run_of
from tsbatch.bench.comparison import compare
from tsbatch.bench.page import headline, show, show_comparison
from tsbatch.bench.summary import combine, summarize


def whole(step, **changes):
    run = run_of(latencies(np.random.default_rng(1), 4000, 1.0))
    samples = replace(run.samples, queue=np.full(4000, 1.5), assembly=np.full(4000, 2.5), handler=np.full(4000, 3.5))
    samples = replace(samples, batch=np.full(4000, 4.0), capacity=np.full(4000, 8.0))
    run = replace(run, step=step, samples=samples, **changes)
    return replace(run, summary=summarize(run, limit=50.0, timeout=30.0))


def summed(result):
    return replace(result, summary=[combine(step, runs) for step, runs in result.steps().items()])


def test_one_step_has_all_figures(capsys):
    worker = {"name": "worker 9000", "pid": 77, "cpu": 0.5, "memory_rss": 250_000_000, "memory_private": None}
    generator = {"cpu": 0.95, "connections": 8, "reconnects": 2, "resent": 1}
    show(summed(result_of([whole(8.0, workers=[worker], generator=generator, padding_waste=0.25)])))
    lines = capsys.readouterr().out.splitlines()
    by_name = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert lines[0] == "m 1.0: closed loop, 8 clients; batchSize 8"
    assert by_name["queue"][1:] == ["1.50"] * 5
    assert by_name["4"] == ["4", "4000", "1000", "100.0%"]
    assert by_name["worker"] == ["worker", "9000", "77", "0.50", "250", "-"]
    assert by_name["p99"][3:5] != []
    text = "\n".join(lines)
    assert "batches: 4.00 requests on average, of 8 at most" in text
    assert "padding waste: 25.0%" in text
    assert "load generator: 0.95 cores, 8 connections opened, 2 replaced, 1 resent" in text
    assert "note: the load generator was the bottleneck" in text


def test_what_processes_hold_of_gpus_is_a_column_where_any_does(capsys):
    worker = {"name": "worker 9000", "pid": 77, "cpu": 0.5, "memory_rss": 250_000_000, "memory_private": None}
    on_gpus = {**worker, "memory_gpus": {"GPU-a": 3_000_000_000, "GPU-b": 1_000_000}}
    for workers, last in (([worker, on_gpus], ["GPU MB", "0", "3001"]), ([worker], ["private MB", "-"])):
        show(summed(result_of([whole(8.0, workers=workers)])))
        lines = capsys.readouterr().out.splitlines()
        table = lines[next(number for number, line in enumerate(lines) if line.startswith("process")) :]
        rows = [line for line in table if line.startswith(("process", "worker"))]
        assert [line.rstrip()[-len(cell) :] for line, cell in zip(rows, last, strict=True)] == last


def test_several_steps_are_a_line_each_with_their_notes(capsys):
    busy = {"cpu": 0.99}
    show(summed(result_of([whole(4.0), whole(8.0, generator=busy)])))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["step", "4", "8"]
    assert lines[2].split()[8] == "4.0", "requests a batch"
    assert lines[-1].startswith("note: step 8: the load generator")


@pytest.mark.parametrize(
    "plan, text",
    [
        ({"loop": "open", "arrivals": "poisson", "steps": [40.0]}, "open loop, 40 requests/s (poisson), 3 runs"),
        ({"loop": "open", "arrivals": "trace", "steps": []}, "open loop, a trace, 3 runs"),
    ],
)
def test_an_open_loop_in_words(plan, text):
    result = result_of([])
    result = replace(result, plan={**result.plan, **plan, "repeat": 3}, target={**result.target, "model": None})
    assert headline(result) == f"http://x/: {text}; batchSize 8"


def test_a_comparison_of_several_steps(capsys):
    a = result_of([whole(4.0), whole(8.0), whole(4.0), whole(8.0)])
    b = result_of(a.runs, batchSize=16)
    show_comparison(compare(a, b))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "B is within the noise of A (2 and 2 runs)"
    assert lines[1] == "  batchSize: 8 -> 16"
    assert lines[2].split()[:2] == ["step", "figure"]
    assert len([line for line in lines if "within the noise" in line]) == 1 + 8
