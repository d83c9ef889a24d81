"""What TorchServe itself cost in a load test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.simulation.results import batches, result_of
from tsbatch.bench.request_table import Samples
from tsbatch.simulation.batching_rules import Overhead, Settings
from tsbatch.simulation.fitting import of_bench
from tsbatch.simulation.overhead import TYPICAL, overhead_of
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.simulator import simulate
from tsbatch.simulation.workload import Clients


def waiting(number, *, size=1, every=100.0, handler=95.0, held=4.0):
    """Batches whose requests had waited, ms: what is left of ``every`` passed until the worker was free."""
    return [(at * every / 1000, [1] * size, [0] * size, handler, 90.0, held) for at in range(number)]


def test_it_is_what_passes_between_full_batches_that_waited():
    # 95 ms in the handler; 1 ms later the worker was free, and 4 ms after that it had the next batch.
    at_once = [(9 + second / 10, [1] * 8, [0] * 8, 50.0, 0.0, 1.5) for second in range(80)]
    partial = [(20 + second / 10, [1] * 4, [0] * 4, 50.0, 100.0, 20.0) for second in range(80)]
    rows = batches([*waiting(50, size=8), *at_once, *partial])
    overhead = of_bench(result_of(rows)).overhead
    assert overhead.of_batch(8) == pytest.approx(5.0)
    # One size cannot tell the batch's share from its requests': as usual.
    assert overhead.batch / overhead.request == pytest.approx(TYPICAL.batch / TYPICAL.request, rel=0.001)


def test_the_frontend_is_what_no_batch_and_no_request_accounts_for():
    # Sent to an idle server: 0.9 ms to the hand-over, 20 in the handler, and the answer is there 2 ms after it.
    alone = [(9 + second / 10, [1], [0], 20.0, 0.0, 0.9) for second in range(50)]
    rows = batches([*waiting(50, handler=98.0, held=1.5), *alone])
    rows = replace(rows, latency=rows.queue + rows.assembly + rows.handler + 2.0)
    overhead = overhead_of(rows, 1)
    assert overhead.of_batch(1) == pytest.approx(2.0)
    assert overhead.frontend + overhead.of_batch(1) == pytest.approx(0.9 + 2.0)
    # Nobody came to an idle server: half of the batch's own is taken for what precedes the hand-over.
    assert overhead_of(rows.where(rows.queue > 0), 1).frontend == pytest.approx(overhead.batch / 2, abs=0.001)


def test_what_does_not_show_is_typical():
    rows = batches([(second / 10, [1], [0], 50.0, 0.0, 4.0) for second in range(50)])
    overhead = of_bench(result_of(rows)).overhead
    assert (overhead.batch, overhead.request) == (TYPICAL.batch, TYPICAL.request)
    assert overhead_of(batches(waiting(5)), 1) == TYPICAL
    assert overhead_of(rows.where(rows.sent < 0), 1) == TYPICAL


def test_a_wait_for_company_is_no_overhead():
    # Three of eight waited for the others in vain, for 10 ms, behind requests that were served before.
    rows = batches(waiting(50, size=3, handler=90.0, held=10.0))
    full = batches([(9 + at, *rest) for at, *rest in waiting(50, size=8, handler=96.0)])

    def overhead(samples, told=None, capacity=np.nan):
        known = replace(samples, capacity=np.full(len(samples), capacity))
        return of_bench(result_of(known, batch_size=told)).overhead

    assert overhead(rows).batch == TYPICAL.batch, "nobody knows whether a batch was full"
    assert overhead(rows, capacity=8.0).batch == TYPICAL.batch, "the answers say that none was"
    assert overhead(Samples.join([rows, full]), capacity=8.0).of_batch(8) == pytest.approx(4.0)
    assert overhead(rows, told=3, capacity=8.0).of_batch(3) == pytest.approx(10.0), "the server's word counts"


def test_batches_that_others_filled_do_not_count():
    # One of eight is ours and had waited; the seven others came 60 ms later.
    theirs = batches([(60 + at, *rest) for at, *rest in waiting(50, size=8, handler=30.0, held=60.0)])
    theirs = theirs.where(np.arange(len(theirs)) % 8 == 0)
    rows = Samples.join([batches(waiting(50, size=8)), theirs])
    assert overhead_of(rows, 8).of_batch(8) == pytest.approx(5.0)


def test_requests_that_failed_are_part_of_their_batch():
    rows = batches(waiting(50, size=2))
    rows = replace(rows, status=np.where(np.arange(len(rows)) % 2, 422.0, 200.0))
    assert overhead_of(rows, 2).of_batch(2) == pytest.approx(5.0)


def test_whoever_waited_no_longer_than_the_way_in_may_have_found_a_worker_free():
    # A client 20 ms away, or with a clock that is late: requests that came 10 ms after the worker was free.
    late = [(20 + at / 10, [1], [0], 40.0, 10.0, 30.0) for at in range(50)]
    free = [(40 + at / 10, [1], [0], 40.0, 0.0, 20.0) for at in range(50)]
    rows = batches([*waiting(50), *late, *free])
    assert overhead_of(rows, 1).of_batch(1) == pytest.approx(5.0)


def test_what_takes_longer_at_times_counts_and_an_accident_does_not():
    held = [3.0] * 80 + [7.0] * 20
    rows = batches([(at / 10, [1], [0], 99.0 - ms, 90.0, ms) for at, ms in enumerate(held)])
    assert overhead_of(rows, 1).of_batch(1) == pytest.approx(3.8 + 1.0, abs=0.2)
    held[40] = 90.0
    rows = batches([(at / 10, [1], [0], 3.0, 90.0, ms) for at, ms in enumerate(held)])
    assert overhead_of(rows, 1).of_batch(1) == pytest.approx(3.8, abs=0.05)


def test_a_batch_of_others_is_no_overhead():
    # Between any two of ours, 70 ms of which nothing is known; nine times out of fifty less.
    rows = [(at / 10, [1], [0], 95.0 if at % 5 == 1 and at < 45 else 26.0, 90.0, 4.0) for at in range(50)]
    assert overhead_of(batches(rows), 1).of_batch(1) == pytest.approx(4.0)


@pytest.mark.parametrize("told, workers, batch", [(True, 1, 5.0), (True, 4, 5.0), (False, 1, 0.9), (False, 12, 0.9)])
def test_a_simulated_load_gives_back_what_was_put_in(told, workers, batch):
    truth = ServiceTime(
        sizes=[1, 2],
        times=[22.0, 24.0],
        spread=np.linspace(0.7, 1.3, 13),
        overhead=Overhead(frontend=0.7, batch=batch, request=0.1),
    )
    settings = Settings(workers=workers, batch_size=8, max_batch_delay=20, queue_size=1000)
    samples = simulate(settings, Clients(number=24 * workers, requests=20_000), truth, seed=3).samples
    if not told:
        samples = replace(samples, worker=np.full(len(samples), np.nan))
    overhead = overhead_of(samples, 8)
    assert overhead.of_batch(8) == pytest.approx(batch + 0.8, rel=0.01)
    # What the typical request of a batch meets after the handler, however it is shared out.
    assert overhead.frontend + overhead.of_batch(4.5) == pytest.approx(0.7 + batch + 0.1 * 4.5, abs=0.1)
    assert overhead_of(samples, 16).batch == TYPICAL.batch, "none of its batches was full"


def test_of_one_worker_it_shows_however_fast_its_batches_follow_each_other():
    # Half a ms in the handler, 0.4 until the worker is free, 0.6 more to the next hand-over: two end in any 2 ms.
    rows = batches([(at * 1.5 / 1000, [1], [0], 0.5, 5.0, 0.6) for at in range(200)])
    assert overhead_of(rows, 1, 1).of_batch(1) == pytest.approx(1.0, abs=0.01)
    assert overhead_of(rows, 1).of_batch(1) == pytest.approx(0.6, abs=0.01), "of whom a batch was, nobody said"
    slow = batches(waiting(50, every=1000.0))
    assert overhead_of(slow, 1, 1).of_batch(1) == pytest.approx(4.0), "a batch of others may lie between"


def test_without_a_delay_two_requests_are_a_full_batch():
    rows = batches(waiting(50, size=2))
    result = result_of(rows)
    told = {**result.target, "settings": {"batchSize": 8, "workers": 1, "maxBatchDelay": 0}}
    assert of_bench(replace(result, target=told)).overhead.of_batch(2) == pytest.approx(5.0)
