"""What a simulation is fed with."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.ops.simulation.results import result_of
from tsbatch.errors import UsageError
from tsbatch.ops.measure.arrivals import Arrivals
from tsbatch.ops.measure.samples import Samples
from tsbatch.ops.simulation.arrivals import Clients, rate_of, read_recorded, scaled, take


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


def test_the_rate_of_a_recording():
    assert rate_of(np.arange(0, 10.0, 0.5)) == 2
    assert rate_of(np.zeros(3)) == 0
    assert rate_of(np.empty(0)) == 0


def test_recorded_by_a_load_test(tmp_path):
    sent = np.array([1000.5, 1000.0, 1002.0])
    result_of(Samples(sent=sent, latency=np.ones(3), status=np.full(3, 200.0))).save(tmp_path / "b.json")
    assert read_recorded(tmp_path / "b.json").tolist() == [0.0, 0.5, 2.0]


def test_recorded_line_by_line(tmp_path):
    (tmp_path / "times.txt").write_text("5.5\n5\n6.5\n")
    assert read_recorded(tmp_path / "times.txt").tolist() == [0.0, 0.5, 1.5]


def test_recorded_in_a_log(tmp_path):
    head = "2026-01-01T00:00:00,000 [DEBUG] W-9000-m_1.0 org.pytorch.serve"
    lines = []
    for at, job in ((1000.0, "a"), (1500.0, "b")):
        lines += [
            f"{head}.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: {at:.0f}",
            f"{head}.wlm.BatchAggregator - Sending response for jobId {job}",
            f"{head}.job.RestJob - Waiting time ns: 0, Backend time ns: 5000000",
        ]
    (tmp_path / "ts_log.log").write_text("\n".join(lines) + "\n")
    assert read_recorded(tmp_path).tolist() == [0.0, 0.5]
    assert read_recorded(tmp_path / "ts_log.log", "m").tolist() == [0.0, 0.5]
    with pytest.raises(UsageError, match="nothing of other"):
        read_recorded(tmp_path, "other")


def test_a_load_test_without_requests(tmp_path):
    result_of(Samples(sent=np.empty(0), latency=np.empty(0), status=np.empty(0))).save(tmp_path / "b.json")
    with pytest.raises(UsageError, match="no request was recorded"):
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
