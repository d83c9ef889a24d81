"""The figures of a run, and of repeats."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_file import Run
from tsbatch.bench.summary import combine, goodput, parts_of, remarks, summarize, timed_out

NAN = math.nan


def make(latency, status=None, seconds=10.0, **columns):
    n = len(latency)
    samples = Samples(sent=np.arange(n) / 10, latency=latency, status=status or [200] * n, **columns)
    good = int(samples.ok.sum())
    run = Run(
        started="", step=8.0, seconds=seconds, answered=good, answered_items=2 * good, samples=samples, generator={}
    )
    return replace(run, summary=summarize(run, limit=100.0, timeout=30.0))


def test_rates_and_goodput():
    run = make([50.0] * 60 + [150.0] * 20 + [5.0] * 20, [200] * 80 + [503] * 20)
    assert (run.summary["requests"], run.summary["failed"], run.summary["timed_out"]) == (100, 20, 0)
    assert (run.summary["rate"], run.summary["items_rate"]) == (8, 16)
    assert run.summary["goodput"] == {"limit": 100, "share": 0.6, "rate": 6}
    assert run.summary["latency"]["p50"]["value"] == 50, "refusals are not fast answers"
    assert goodput(run.samples.where(run.samples.status == 503), 100, 0.0) == {"limit": 100, "share": 0, "rate": 0}


def test_a_request_that_timed_out_counts_as_long_as_it_was_waited_for():
    run = make([50.0] * 90 + [30_000.0] * 10, [200] * 90 + [0] * 10)
    assert timed_out(run.samples, 30.0).sum() == 10
    assert run.summary["latency"]["p95"]["value"] == 30_000
    refused = make([50.0] * 90 + [0.1] * 10, [200] * 90 + [0] * 10)
    assert refused.summary["latency"]["p95"]["value"] == 50


def test_the_parts_and_what_is_left():
    waits = {"queue": [70.0, NAN, 1.0], "assembly": [5.0, NAN, 1.0], "handler": [20.0, 20.0, 1.0]}
    samples = make([100.0, 60.0, 9.0], [200, 200, 503], **waits).samples
    parts = parts_of(samples)
    assert list(parts) == ["queue", "assembly", "handler", "other"]
    assert parts["queue"]["mean"] == 70
    assert parts["handler"]["mean"] == 20
    assert parts["other"] == {"mean": 5, "max": 5}, "of the one request that told all"


def test_batches():
    batch = make([1.0] * 10, batch=[8.0] * 8 + [2.0] * 2, capacity=[8.0] * 10).summary["batch"]
    assert (batch["mean"], batch["capacity"]) == (5, 8)
    assert make([1.0]).summary["batch"] is None


def test_a_single_run_keeps_its_own_intervals():
    run = make(list(np.random.default_rng(1).lognormal(3, 0.3, 5000)))
    step = combine(8.0, [run])
    assert step["latency"] == run.summary["latency"]
    assert step["latency"]["p99"]["low"] < step["latency"]["p99"]["value"] < step["latency"]["p99"]["high"]
    assert step["rate"]["value"] == 500
    assert step["rate"]["low"] <= 500 <= step["rate"]["high"]


def test_repeats_have_the_interval_between_them():
    runs = [make([value] * 1000) for value in (90.0, 100.0, 111.0)]
    step = combine(8.0, runs)
    assert step["latency"]["p50"]["value"] == pytest.approx((90 * 100 * 111) ** (1 / 3), abs=1e-3)
    assert step["latency"]["p50"]["low"] < 90
    assert step["latency"]["p50"]["high"] > 111
    assert step["latency"]["max"] == {"value": 111, "low": None, "high": None}
    assert (step["runs"], step["requests"]) == (3, 3000)
    assert step["goodput"]["share"]["value"] == pytest.approx(2 / 3, abs=1e-4)


def test_nothing_to_remark_on_a_good_run():
    run = make([50.0] * 1000)
    assert remarks(replace(run, generator={"cpu": 0.5, "lateness": {"p99": 4.9}, "waited_for_connection": 0})) == {}


@pytest.mark.parametrize(
    "generator, kind, text",
    [
        ({"cpu": 0.97}, "busy", "used 0.97 of its one core"),
        ({"cpu": 0.1, "lateness": {"p99": 5.1}}, "late", "at P99 it sent requests 5.1 ms late"),
        ({"cpu": 0.1, "waited_for_connection": 3}, "waited", "3 requests waited for a free connection"),
    ],
)
def test_a_generator_that_was_the_bottleneck_says_so(generator, kind, text):
    run = replace(make([50.0] * 1000), generator=generator)
    assert list(remarks(run)) == [kind]
    assert text in remarks(run)[kind]
    assert combine(8.0, [run, run])["remarks"] == [f"{remarks(run)[kind]} (in 2 of 2 runs)"]
    assert combine(8.0, [run])["remarks"] == [remarks(run)[kind]]


def test_time_outs_and_short_runs_are_remarked():
    assert list(remarks(make([30_000.0] * 500, [0] * 500))) == ["time-out"]
    assert list(remarks(make([5.0] * 20))) == ["short"]
