"""TorchServe's rules, against known answers and against a simulation by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.simulation.by_hand import serve
from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import Overhead, Settings, form_batches
from tsbatch.simulation.workload import Clients

NOTHING = Overhead()


def formed(settings, arrivals, took=10.0, overhead=NOTHING):
    """Members, begin and hand-over of each batch."""
    batches = form_batches(settings, list(arrivals), lambda members: took, overhead)
    ends = np.cumsum(batches.size).tolist()
    starts = [0, *ends[:-1]]
    members = [batches.admitted[start:end] for start, end in zip(starts, ends, strict=True)]
    return list(zip(members, batches.begun, batches.handed, strict=True))


def sizes(settings, arrivals, took=10.0):
    return [len(members) for members, _, _ in formed(settings, arrivals, took)]


def test_the_delay_counts_from_the_first_request_that_a_worker_took():
    settings = Settings(batch_size=4, max_batch_delay=20)
    assert formed(settings, [5.0, 10.0, 24.0, 25.5]) == [([0, 1, 2], 5.0, 25.0), ([3], 35.0, 55.0)]


def test_a_request_that_waited_for_a_worker_starts_the_delay_anew():
    settings = Settings(batch_size=2, max_batch_delay=20)
    assert formed(settings, [0.0, 1.0, 2.0], took=100.0) == [([0, 1], 0.0, 1.0), ([2], 101.0, 121.0)]


def test_a_full_batch_goes_at_once_and_one_of_a_single_request_never_waits():
    assert formed(Settings(batch_size=2, max_batch_delay=500), [1.0, 3.0]) == [([0, 1], 1.0, 3.0)]
    assert formed(Settings(batch_size=1, max_batch_delay=500), [1.0]) == [([0], 1.0, 1.0)]


def test_without_delay_two_at_most_travel_together():
    # 256 requests of 32 clients on a real server with batch_size 8: every batch was of exactly 2.
    assert sizes(Settings(batch_size=8, max_batch_delay=0), np.arange(32) / 1000) == [1, *[2] * 15, 1]
    assert sizes(Settings(batch_size=8, max_batch_delay=-10000), [0.0, 0.1, 0.2, 0.3, 0.4]) == [1, 2, 2]
    assert sizes(Settings(batch_size=1, max_batch_delay=0), [0.0, 0.1, 0.2]) == [1, 1, 1]


def test_the_delay_is_counted_in_ticks_of_a_clock_of_whole_milliseconds():
    one = Settings(batch_size=8, max_batch_delay=1)
    # 0.2 ms apart, but the clock ticked in between: the delay of 1 ms is over.
    assert formed(one, [10.9, 11.1, 11.2], took=0.01)[0] == ([0, 1], 10.9, 11.1)
    assert formed(one, [10.9, 11.1, 11.1], took=0.01)[0] == ([0, 1], 10.9, 11.1)
    # 1.7 ms in all, but the delay begins anew until the clock has ticked.
    assert formed(one, [10.0, 10.95, 11.7], took=0.01)[0] == ([0, 1, 2], 10.0, 11.7)


def test_one_worker_at_a_time_assembles():
    settings = Settings(workers=2, batch_size=2, max_batch_delay=50)
    # The second worker is free, but the first holds the lock until its batch is full.
    assert formed(settings, [0.0, 40.0, 41.0], took=100.0) == [([0, 1], 0.0, 40.0), ([2], 41.0, 91.0)]
    # Both are busy; when both are free the lock decides.
    late = formed(settings, [0.0, 1.0, 2.0, 3.0, 20.0], took=10.0)
    assert late == [([0, 1], 0.0, 1.0), ([2, 3], 2.0, 3.0), ([4], 20.0, 70.0)]


def test_a_queue_that_is_full_refuses():
    settings = Settings(batch_size=2, max_batch_delay=1, queue_size=3)
    batches = form_batches(settings, [0.0, 0.1, 1.0, 2.0, 3.0, 4.0, 5.0, 20.0], lambda members: 10.0, NOTHING)
    assert batches.admitted == [0, 1, 2, 3, 4, 7]


def test_a_worker_takes_from_a_full_queue_before_others_come():
    settings = Settings(batch_size=2, max_batch_delay=1, queue_size=2)
    batches = form_batches(settings, [0.0, 0.1, 1.0, 2.0, 10.5, 10.6], lambda members: 10.0, NOTHING)
    assert batches.admitted == [0, 1, 2, 3, 4, 5]


def test_overhead_keeps_the_worker_busy():
    overhead = Overhead(frontend=100.0, batch=2.0, request=0.5)
    told = formed(Settings(batch_size=2, max_batch_delay=1), [0.0, 0.1, 0.2, 0.3], took=10.0, overhead=overhead)
    assert [begun for _, begun, _ in told] == [0.0, pytest.approx(13.1)]


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"batch_size": 0}, {"queue_size": 0}])
def test_settings_that_torchserve_would_not_take(wrong):
    with pytest.raises(UsageError, match="expected at least 1"):
        Settings(**wrong)


settings_of_any_kind = st.builds(
    Settings,
    workers=st.integers(1, 4),
    batch_size=st.integers(1, 6),
    max_batch_delay=st.sampled_from([0, 1, 2, 7, 30]),
    queue_size=st.sampled_from([1, 2, 5, 100]),
)


@given(settings_of_any_kind, st.integers(0, 2**32), st.sampled_from([0.5, 3.0, 20.0]), st.booleans())
def test_as_by_hand(settings, seed, gap, clustered):
    random = np.random.default_rng(seed)
    gaps = random.exponential(gap, 150)
    if clustered:
        gaps[random.random(150) < 0.7] *= 0.01
    arrivals = np.cumsum(gaps).tolist()
    overhead = Overhead(batch=0.3, request=0.07)

    def took(members):
        return 3.0 + 2.5 * len(members) + 0.1 * (members[0] % 7)

    expected = serve(settings, arrivals, took, overhead)
    batches = form_batches(settings, list(arrivals), took, overhead)
    ends = np.cumsum(batches.size).tolist()
    members = [batches.admitted[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    assert members == [batch for batch, _, _ in expected.batches]
    assert sorted(set(range(150)) - set(batches.admitted)) == expected.refused
    np.testing.assert_allclose(batches.begun, [begun for _, begun, _ in expected.batches])
    np.testing.assert_allclose(batches.handed, [handed for _, _, handed in expected.batches])


def test_clients_send_again_when_they_are_answered():
    clients = Clients(3, 9)
    batches = form_batches(
        Settings(batch_size=3, max_batch_delay=5), clients.start(2.0), lambda members: 10.0, NOTHING, clients
    )
    assert batches.size == [3, 3, 3]
    assert batches.handed == [0.0, 12.0, 24.0]


def test_answers_of_a_batch_come_one_after_the_other():
    clients = Clients(2, 4)
    batches = form_batches(
        Settings(batch_size=2, max_batch_delay=1),
        clients.start(1.0),
        lambda members: 10.0,
        Overhead(request=2.0),
        clients,
    )
    assert batches.arrivals == [0.0, 0.0, 13.0, 15.0]


def test_clients_that_are_refused_try_again():
    clients = Clients(4, 12)
    batches = form_batches(
        Settings(batch_size=1, queue_size=1), clients.start(0.0), lambda members: 5.0, NOTHING, clients
    )
    assert len(batches.arrivals) == 12
    # Two of the four are refused at 0, and every ms again until somebody makes room.
    assert batches.arrivals[:8] == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert batches.admitted[:2] == [0, 1]
