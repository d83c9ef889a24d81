"""A service time out of what was measured."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.unit.simulation.results import batches, result_of
from tsbatch.bench.request_table import Samples
from tsbatch.bench.send_times import Arrivals
from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import Overhead, Settings
from tsbatch.simulation.fitting import of_bench, of_check, read_service
from tsbatch.simulation.overhead import TYPICAL
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.simulator import simulate
from tsbatch.simulation.workload import take


def measured(service, *, rate=150.0, batch_size=8, requests=20_000, lengths=None, items=None):
    """What a load test of a server with that service time would have found."""
    settings = Settings(batch_size=batch_size, max_batch_delay=5)
    arrivals = take(Arrivals("poisson", rate, seed=1), requests)
    return simulate(settings, arrivals, service, lengths=lengths, items=items, seed=2).samples


def test_a_line_and_its_spread_are_found_again():
    truth = ServiceTime(sizes=[1, 2], times=[12.0, 15.0], spread=[0.8, 1.0, 1.0, 1.2])
    found = of_bench(result_of(measured(truth)), "b.json")
    np.testing.assert_allclose(found.mean(np.arange(1.0, 9)), truth.mean(np.arange(1.0, 9)), rtol=0.03)
    assert np.std(found.spread) == pytest.approx(np.std(truth.spread), rel=0.05)
    assert np.mean(found.spread) == pytest.approx(1)
    assert found.per_length == 0
    assert found.largest == 8
    assert found.source == "b.json"


def test_lengths_are_found_where_they_matter():
    lengths = np.random.default_rng(0).exponential(400, 20_000) + 10
    truth = ServiceTime(sizes=[1, 2], times=[8.0, 10.0], per_length=0.01, lengths=lengths)
    samples = measured(truth, lengths=lengths)
    object.__setattr__(samples, "length", lengths)
    found = of_bench(result_of(samples))
    assert found.per_length == pytest.approx(0.01, rel=0.05)
    assert np.std(found.spread) < 0.05
    np.testing.assert_allclose(found.mean(np.arange(1.0, 9)), truth.mean(np.arange(1.0, 9)), rtol=0.005)
    assert np.mean(found.lengths) == pytest.approx(lengths.mean(), rel=0.02)


def test_items_count_rather_than_requests():
    items = np.random.default_rng(0).integers(1, 4, 20_000).astype(float)
    truth = ServiceTime(sizes=[1, 2], times=[8.0, 11.0])
    found = of_bench(result_of(measured(truth, items=items, rate=90.0)))
    np.testing.assert_allclose(found.mean(np.array([1.0, 6.0, 12.0])), [8.0, 23.0, 41.0], rtol=0.02)
    assert np.mean(found.items) == pytest.approx(2, rel=0.02)


def test_a_table_never_falls():
    rows = [
        (second, [1] * size, [0] * size, time, 0, 0) for second, (size, time) in enumerate([(1, 10), (2, 9), (4, 20)])
    ]
    found = of_bench(result_of(batches([(s + 3 * turn, *rest) for turn in range(10) for s, *rest in rows])))
    assert list(found.sizes) == [1, 2, 4]
    assert list(found.times) == [9.5, 9.5, 20.0]


def test_sizes_that_were_seen_once_are_left_to_their_neighbours():
    rows = [(second, [1], [0], 10.0, 0, 0) for second in range(20)] + [(30, [1] * 3, [0] * 3, 500.0, 0, 0)]
    assert list(of_bench(result_of(batches(rows))).sizes) == [1]


def test_batches_of_which_requests_are_missing_do_not_count():
    rows = batches([(second, [1, 1], [0, 0], 10.0 + second, 0, 0) for second in range(20)])
    half = rows.where(np.arange(len(rows)) != 5)
    assert len(of_bench(result_of(half)).spread) == 19


def test_the_machine():
    watched = [{"name": "worker 9000", "cpu": 0.5, "memory_rss": 1, "memory_private": 1}]
    rows = batches([(second / 10, [1], [0], 50.0, 0.0, 0.0) for second in range(100)])
    machine = of_bench(result_of(rows, workers=3, watched=watched, cores=4)).machine
    assert (machine.workers, machine.cores) == (3, 4)
    assert machine.worker_cores == pytest.approx(1.0)


def test_answers_that_told_nothing():
    nothing = Samples(sent=np.zeros(3), latency=np.ones(3), status=np.full(3, 200.0))
    with pytest.raises(UsageError, match="no handler times"):
        of_bench(result_of(nothing))


CHECK = {
    "schema": 1,
    "loads": True,
    "service": [
        {"batch": 1, "seconds": 0.010, "slowest": 0.014, "per_item": 0.010, "repeats": 4},
        {"batch": 4, "seconds": 0.020, "slowest": 0.020, "per_item": 0.005, "repeats": 4},
    ],
}


def test_out_of_a_check(tmp_path):
    path = tmp_path / "check.json"
    path.write_text(json.dumps(CHECK))
    found = read_service(path)
    np.testing.assert_allclose(found.mean(np.array([1.0, 2.5, 4.0])), np.array([10.0, 15.0, 20.0]) * 1.05)
    assert max(found.spread) == pytest.approx(1.4 / 1.05)
    assert found.overhead == TYPICAL
    assert of_check(CHECK, "x").machine.workers == 1


def test_out_of_a_load_test(tmp_path):
    rows = batches([(second / 10, [1], [0], 50.0, 0.0, 0.0) for second in range(20)])
    result_of(rows).save(tmp_path / "b.json")
    assert read_service(tmp_path / "b.json").times == [50.0]


def test_overheads_are_no_part_of_a_handler_time():
    truth = ServiceTime(sizes=[1], times=[10.0], overhead=Overhead(frontend=2.0, batch=3.0, request=0.1))
    assert of_bench(result_of(measured(truth, rate=30.0))).times[0] == pytest.approx(10.0)
