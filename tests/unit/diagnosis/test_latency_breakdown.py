from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from tests.unit.diagnosis.tables import Traffic
from tsbatch.bench.request_table import Samples
from tsbatch.diagnosis.latency_breakdown import split


def test_parts_add_up_and_have_their_own_percentiles():
    generator = np.random.default_rng(1)
    queue, assembly, handler = generator.exponential((30, 10, 50), (1000, 3)).T
    latency = queue + assembly + handler + 2
    samples = Samples(
        sent=np.arange(1000.0), latency=latency, status=np.full(1000, 200), queue=queue, assembly=assembly,
        handler=handler, inference=handler * 0.9,
    )  # fmt: skip
    found = split(samples)
    assert sum(found.part(name).share for name in ("queue", "assembly", "handler", "outside")) == pytest.approx(1)
    assert found.part("queue").p99 == np.percentile(queue, 99)
    assert found.part("latency").p50 == np.percentile(latency, 50)
    slow = latency >= np.percentile(latency, 99)
    assert found.part("handler").slowest == pytest.approx(handler[slow].mean())
    assert found.part("inference").share == pytest.approx(0.9 * found.part("handler").share)
    assert [part.name for part in found.stages] == ["inference"]
    json.dumps(asdict(found), allow_nan=False)


def test_over_time_each_stretch_has_its_own_figures():
    traffic = Traffic()
    for second in range(10):
        at = second * 1000
        traffic.batch([at], begun=at, left=at, handler=10 if second < 5 else 70)
    traffic.refused(9000)
    windows = split(traffic.samples(), windows=3).windows
    assert [round(one.handler) for one in windows] == [10, 30, 70]
    assert [round(one.begin) for one in windows] == [0, 3, 6]
    assert [round(one.rate, 2) for one in windows] == [1, 1, 1.33]
    assert [round(one.failed, 6) for one in windows] == [0, 0, 0.2]


def test_requests_that_failed_in_the_handler_do_not_count():
    traffic = Traffic()
    traffic.batch([0], begun=0, left=0, handler=40)
    traffic.batch([100], begun=100, left=100, handler=2)
    traffic.rows[-1]["status"] = 400
    assert split(traffic.samples()).part("handler").mean == 40


def test_a_sample_counts_for_all():
    traffic = Traffic()
    for at in range(0, 1000, 100):
        traffic.batch([at], begun=at, left=at, handler=10)
    whole, part = (split(traffic.samples(), share=share, windows=1).windows[0].rate for share in (1, 0.25))
    assert part == 4 * whole


def test_nothing_and_next_to_nothing():
    traffic = Traffic()
    traffic.refused(5)
    assert split(traffic.samples()).windows == []
    assert split(Samples([], [], [])).part("latency").mean == 0
