"""What a simulation is fed with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.unit.simulation.results import result_of
from tsbatch.bench.request_table import Samples
from tsbatch.bench.send_times import Arrivals
from tsbatch.diagnosis import ts_log
from tsbatch.errors import UsageError
from tsbatch.simulation.workload import Clients, busiest, rate_of, read_recorded, scaled, shares, take


def test_as_many_as_are_wanted_or_there_are():
    assert len(take(Arrivals("poisson", 10.0), 5000)) == 5000
    assert take(Arrivals("trace", times=[0.0, 1.0, 4.0]), 5000).tolist() == [0.0, 1.0, 4.0]


def test_a_scaled_recording_keeps_its_shape():
    times = np.concatenate([np.arange(0, 10, 0.1), np.arange(10, 20, 0.01)])
    assert scaled(times, 1) is times
    for factor in (0.3, 3.5, 40):
        more = scaled(times, factor, seed=1)
        assert len(more) == pytest.approx(factor * len(times), rel=0.06)
        assert (np.diff(more) >= 0).all()
        assert more[0] >= 0
        assert more[-1] <= times[-1]
        assert (more < 10).mean() == pytest.approx((times < 10).mean(), abs=0.03)
    assert set(scaled(times, 0.3)) <= set(times)
    assert set(times) <= set(scaled(times, 3.0))


@pytest.mark.parametrize("factor", [0.3, 2.2])
def test_a_little_more_is_the_same_and_a_little_more(factor):
    times = np.cumsum(np.random.default_rng(0).exponential(1.0, 1000))
    less, more = scaled(times, factor, 1), scaled(times, factor + 0.1, 1)
    assert set(less) < set(more)


def test_scaling_is_random_by_its_seed():
    times = np.arange(1000.0)
    assert (scaled(times, 0.5, 1) == scaled(times, 0.5, 1)).all()
    assert scaled(times, 0.5, 1).tolist() != scaled(times, 0.5, 2).tolist()


def test_copies_of_the_last_one_reach_as_far_as_is_said():
    times = np.array([0.0, 1.0])
    assert (scaled(times, 1000)[1000:] == 1).all()
    longer = scaled(times, 1000, end=5.0)
    assert longer[:1000].max() < 1
    assert longer[1000:].max() == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize("factor", [0.002, 0.3, 1.0, 2.4, 40.0])
def test_shares_of_several_machines(factor):
    times = np.concatenate([np.arange(0, 10, 0.1), np.arange(10, 20, 0.01)])
    machines = max(1, round(20_000 / (factor * len(times))))
    found = shares(times, factor, machines, 60.0, seed=1)
    assert len(found) == pytest.approx(machines * factor * len(times), rel=0.05)
    assert (np.diff(found) >= 0).all()
    machine, place = np.divmod(found + 1e-6, times[-1] + 1 / rate_of(times) + 60)
    assert set(machine) == set(range(machines)) or factor < 0.01, "nobody is left out but by chance"
    assert place.max() < 20.1
    assert (place < 10).mean() == pytest.approx((times < 10).mean(), abs=0.02)
    assert (found == shares(times, factor, machines, 60.0, seed=1)).all()
    assert found.tolist() != shares(times, factor, machines, 60.0, seed=2).tolist() or factor == 1


def test_a_share_of_next_to_nothing_takes_no_room():
    times = np.linspace(0, 10, 500)
    found = shares(times, 1e-7, 10**8, 60.0)
    assert len(found) == pytest.approx(5000, rel=0.1)


def test_copies_are_spread_over_a_short_recording():
    times = shares(np.array([0.0, 1.0, 2.0]), 1000.0, 1, 60.0)
    assert len(times) == 3000
    assert np.diff(times).max() < 0.02


def test_the_busiest_stretch():
    assert busiest(np.array([0.0, 5.0, 6.0, 6.5, 9.0]), 3).tolist() == [0.0, 1.0, 1.5]
    assert busiest(np.array([2.0, 5.0]), 3).tolist() == [0.0, 3.0]


def test_the_rate_of_a_recording():
    assert rate_of(np.arange(0, 10.0, 0.5)) == 2
    assert rate_of(np.zeros(3)) == 0
    assert rate_of(np.empty(0)) == 0


def test_recorded_by_a_load_test(tmp_path):
    sent = np.array([1000.5, 1000.0, 1002.0])
    result_of(Samples(sent=sent, latency=np.ones(3), status=np.full(3, 200.0))).save(tmp_path / "b.json")
    assert read_recorded(tmp_path / "b.json").times.tolist() == [0.0, 0.5, 2.0]


def test_whose_arrivals_they_are(tmp_path):
    def recorded(*steps, loop="open"):
        runs = []
        for step in steps:
            samples = Samples(sent=np.array([3.0, 1.0, 1.5]), latency=np.ones(3), status=np.full(3, 200.0))
            runs.append(replace(result_of(samples).runs[0], step=step))
        path = tmp_path / "b.json"
        replace(result_of(samples), plan={"loop": loop}, runs=runs).save(path)
        return str(read_recorded(path)).replace(str(path), "b.json")

    assert recorded(None) == "the run of b.json, open loop: 3 requests in 2 s"
    assert recorded(20.0) == "the run of b.json, open loop of 20 requests/s: 3 requests in 2 s"
    closed = "the last of 2 runs of b.json, closed loop of 8 clients: 3 requests in 2 s"
    assert recorded(4.0, 8.0, loop="closed") == closed
    (tmp_path / "times.txt").write_text("5.5\n5\n")
    assert str(read_recorded(tmp_path / "times.txt")) == f"{tmp_path / 'times.txt'}: 2 requests in 0.5 s"


def test_recorded_line_by_line(tmp_path):
    (tmp_path / "times.txt").write_text("5.5\n5\n6.5\n")
    assert read_recorded(tmp_path / "times.txt").times.tolist() == [0.0, 0.5, 1.5]


def test_recorded_in_a_log(tmp_path, monkeypatch):
    head = "2026-01-01T00:00:00,000 [DEBUG] W-9000-m_1.0 org.pytorch.serve"
    lines = []
    for at, job in ((1000.0, "a"), (1500.0, "b")):
        lines += [
            f"{head}.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: {at:.0f}",
            f"{head}.wlm.BatchAggregator - Sending response for jobId {job}",
            f"{head}.job.RestJob - Waiting time ns: 0, Backend time ns: 5000000",
        ]
    (tmp_path / "ts_log.log").write_text("\n".join(lines) + "\n")
    assert read_recorded(tmp_path).times.tolist() == [0.0, 0.5]
    assert read_recorded(tmp_path).origin == f"m/1.0 in {tmp_path}"
    assert read_recorded(tmp_path / "ts_log.log", "m").times.tolist() == [0.0, 0.5]
    with pytest.raises(UsageError, match="no requests of other"):
        read_recorded(tmp_path, "other")
    monkeypatch.setattr(ts_log, "read_log", partial(ts_log.read_log, limit=1))
    with pytest.raises(UsageError, match="has 2 requests of m, more than 100000; use a shorter log"):
        read_recorded(tmp_path)


def test_a_load_test_without_requests(tmp_path):
    result_of(Samples(sent=np.empty(0), latency=np.empty(0), status=np.empty(0))).save(tmp_path / "b.json")
    with pytest.raises(UsageError, match="no requests were recorded"):
        read_recorded(tmp_path / "b.json")


def test_clients_think():
    steady = Clients(3, 5, think=10.0, steady=True)
    assert steady.start(1.0) == [10.0, 10.0, 10.0]
    assert steady.after_answers([20.0, 21.0, 22.0]) == [31.0, 32.0]
    assert steady.after_answers([30.0]) == []
    assert steady.after_refusal(40.0) is None
    chance = Clients(1000, 10**6, think=10.0, seed=1)
    first = chance.start(0.0)
    assert np.mean(first) == pytest.approx(10, rel=0.1)
    assert chance.start(0.0) == first
