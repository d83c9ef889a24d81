from __future__ import annotations

import pytest

from tests.unit.diagnosis.tables import Traffic, assembling, lonely, queueing
from tsbatch.diagnosis.evidence import evidence_of
from tsbatch.diagnosis.model_facts import Known


def test_figures_of_a_small_table():
    traffic = Traffic()
    traffic.batch([0, 10], begun=0, left=10, handler=40)
    traffic.batch([30], begun=51, left=51, handler=20)
    traffic.refused(99)
    found = evidence_of(traffic.samples(), Known(batch_size=2))
    assert (found.requests, found.workers, found.largest) == (4, 1, 2)
    assert found.seconds == pytest.approx(0.1)
    assert found.rate == pytest.approx(30)
    assert (found.failed, found.refused) == (0.25, 0.25)
    assert found.queue == pytest.approx(21 / 3)
    assert found.assembly == pytest.approx(10 / 3)
    assert found.handler == pytest.approx(100 / 3)
    assert found.outside == pytest.approx(1)
    assert found.busy == pytest.approx(0.6)
    assert evidence_of(traffic.samples(), Known(workers=3)).busy == pytest.approx(0.2)
    assert found.batch == 1.5
    assert found.full == 0.5
    # 51, 41, 42 and 1 ms on their way in 100 ms.
    assert found.in_flight == pytest.approx(1.35)
    assert found.alone == 0.5


def test_a_sample_and_its_share():
    samples = queueing(clients=4, size=1, handler=10)
    whole = evidence_of(samples, Known())
    half = evidence_of(samples, Known(), seconds=2 * whole.seconds, share=0.5)
    assert half.requests == 2 * whole.requests
    assert (half.rate, half.busy, half.in_flight) == pytest.approx((whole.rate, whole.busy, whole.in_flight))


def test_requests_that_meet_no_other():
    assert evidence_of(lonely(gap=0, delay=0, handler=20), Known()).alone == 1
    assert evidence_of(queueing(clients=4, size=1, handler=20), Known()).alone < 0.05


def test_limits_that_the_batches_show():
    # Batches of several sizes left by time-out after 100 ms: the largest one too, so nobody knows batchSize.
    some = Traffic()
    for number in range(30):
        at = 300.0 * number
        some.batch([at + place for place in range(1 + number % 3)], begun=at, left=at + 100, handler=40)
    found = evidence_of(some.samples(), Known())
    assert (found.batch_size, found.delay, found.full) == (None, 100, 0)
    # The largest left at once: full.
    full = Traffic()
    for number in range(30):
        at, size = 300.0 * number, 1 + number % 3
        left = at + (100 if size < 3 else size)
        full.batch([at + place for place in range(size)], begun=at, left=left, handler=40)
    found = evidence_of(full.samples(), Known())
    assert (found.batch_size, found.delay) == (3, 100)
    assert found.full == pytest.approx(1 / 3)
    assert found.held == 100
    # Two batches that the log tells as one are no larger batch size.
    full.batch([9300, 9301, 9302, 9303], begun=9300, left=9304, handler=40)
    assert evidence_of(full.samples(), Known()).batch_size == 3
    # All of one size, and all waited: for one that never came.
    assert evidence_of(lonely(gap=0, delay=100, handler=20), Known()).batch_size is None
    assert evidence_of(lonely(gap=0, delay=100, handler=20), Known()).delay == 100
    # All of one size, and none waited.
    assert evidence_of(queueing(clients=8, size=4, handler=20), Known()).batch_size == 4


def test_what_is_known_is_not_guessed():
    found = evidence_of(
        assembling(every=20, delay=100, handler=40), Known(batch_size=16, max_batch_delay=99, workers=3)
    )
    assert (found.batch_size, found.delay, found.full, found.workers) == (16, 99, 0, 3)


def test_what_a_batch_costs_by_its_size():
    traffic = Traffic()
    for number in range(40):
        at, size = 1000.0 * number, 1 + number % 4
        traffic.batch([at] * size, begun=at, left=at, handler=5 + 10 * size)
    cost = evidence_of(traffic.samples(), Known()).cost
    assert (cost.fixed, cost.each) == pytest.approx((5, 10))
    assert cost.of(8) == pytest.approx(85)
    assert evidence_of(queueing(clients=8, size=4, handler=20), Known()).cost is None
