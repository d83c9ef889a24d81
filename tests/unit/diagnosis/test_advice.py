"""Regime, advice and pitfalls together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.diagnosis.tables import Traffic, assembling, lonely, queueing
from tsbatch.diagnosis.advice import Change, room_for_workers
from tsbatch.diagnosis.diagnosis import diagnose
from tsbatch.diagnosis.evidence import Evidence, evidence_of
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.pitfalls import find_pitfalls
from tsbatch.diagnosis.regimes import Regime, find_regime
from tsbatch.errors import UsageError

ROOMY = Known(model="m", cores=16, worker_memory=2**28, free_memory=2**34)


def found(samples, known=ROOMY):
    diagnosis = diagnose(samples, known)
    return diagnosis.finding.regime, diagnosis.advice.change


def test_idle_workers_need_nothing():
    assert found(lonely(gap=500, delay=0, handler=20)) == (Regime.IDLE, None)


def test_an_unnoticeable_delay_is_not_changed():
    assert found(lonely(gap=500, delay=4, handler=200)) == (Regime.IDLE, None)


def test_an_idle_server_still_makes_a_lonely_request_wait():
    assert found(lonely(gap=500, delay=50, handler=20)) == (Regime.IDLE, Change("maxBatchDelay", 50, 1))


def test_a_sequential_client_never_fills_a_batch():
    diagnosis = diagnose(lonely(gap=1, delay=100, handler=20), replace(ROOMY, batch_size=8))
    assert diagnosis.finding.regime is Regime.SEQUENTIAL
    assert diagnosis.advice.change == Change("maxBatchDelay", 100, 1)
    assert any("can never fill" in text for text in diagnosis.pitfalls)


def test_batches_that_leave_by_time_out():
    diagnosis = diagnose(assembling(every=20, delay=200, handler=40), replace(ROOMY, batch_size=64, workers=2))
    assert diagnosis.finding.regime is Regime.ASSEMBLY
    assert diagnosis.advice.change == Change("maxBatchDelay", 200, 1)
    assert diagnosis.advice.leave == ("batchSize", "workers")
    assert any("Only one worker of a model fills a batch at a time" in text for text in diagnosis.pitfalls)


def test_a_delay_that_the_workers_need_is_halved_only():
    traffic = Traffic()
    for number in range(60):
        at, size = 300.0 * number, 4 + number % 5
        traffic.batch([at + place for place in range(size)], begun=at, left=at + 200, handler=90 + size)
    # About 27 requests a second at 91 ms one by one are more than two workers can do.
    assert found(traffic.samples(), replace(ROOMY, batch_size=16, workers=2))[1] == Change("maxBatchDelay", 200, 100)


def test_requests_that_queue_need_workers():
    diagnosis = diagnose(queueing(clients=8, size=1, handler=20), ROOMY)
    assert diagnosis.finding.regime is Regime.QUEUE
    assert diagnosis.advice.change == Change("workers", 1, 2)
    assert any("batchSize 1 is not automatically the fastest" in text for text in diagnosis.pitfalls)
    assert "256 MiB of 16384 MiB" in diagnosis.advice.why


def test_workers_need_memory_and_cores():
    evidence = evidence_of(queueing(clients=8, size=1, handler=20), Known(workers=2))
    for known, room in (
        (Known(), 2),  # nobody knows: no more than double
        (ROOMY, 2),
        (replace(ROOMY, free_memory=2**28), 0),  # none fits with a margin
        (replace(ROOMY, free_memory=3 * 2**27), 1),
        (replace(ROOMY, cores=2), 0),
        (replace(ROOMY, cores=3), 1),
        (replace(ROOMY, cores=2, worker_cores=0.05), 2),  # they mostly wait for something else
        (replace(ROOMY, cores=2, worker_cores=2.0), 0),
    ):
        assert room_for_workers(evidence, known)[0] == room, known


def test_without_room_for_workers_a_larger_batch_is_next():
    known = replace(ROOMY, cores=1)
    assert found(queueing(clients=16, size=4, handler=40), known) == (Regime.QUEUE, Change("batchSize", 4, 8))


def test_a_larger_batch_that_costs_as_much_more_is_none():
    traffic = Traffic()
    at = 0.0
    for number in range(60):
        size = 4 if number % 5 else 2
        handler = 1 + 20.0 * size
        traffic.batch([at - 300 + place for place in range(size)], begun=at, left=at, handler=handler)
        at += handler
    assert found(traffic.samples(), replace(ROOMY, cores=1)) == (Regime.QUEUE, None)


def test_the_delay_comes_before_workers():
    traffic, at = Traffic(), 0.0
    for _ in range(40):
        traffic.batch([at - 400, at + 50], begun=at, left=at + 100, handler=60)
        at += 160
    assert found(traffic.samples(), replace(ROOMY, batch_size=8)) == (Regime.QUEUE, Change("maxBatchDelay", 100, 1))


def test_one_worker_takes_all_and_the_others_idle():
    traffic = Traffic()
    for number in range(30):
        at = 250.0 * number
        traffic.batch([at + place / 10 for place in range(24)], begun=at, left=at + 3, handler=245, worker=0)
    diagnosis = diagnose(traffic.samples(), replace(ROOMY, workers=3, batch_size=24))
    assert diagnosis.finding.regime is Regime.COMPUTE
    assert diagnosis.advice.change == Change("batchSize", 24, 8)
    assert any("2 of 3 workers idle" in text for text in diagnosis.pitfalls)


def test_more_threads_than_cores():
    traffic = Traffic()
    for number in range(40):
        for worker in (0, 1):
            at = 100.0 * number + worker
            traffic.batch([at], begun=at, left=at, handler=95, worker=worker)
    known = replace(ROOMY, workers=2, cores=2, threads=2)
    diagnosis = diagnose(traffic.samples(), known)
    assert (diagnosis.finding.regime, diagnosis.advice.change) == (Regime.COMPUTE, Change("threads", 2, 1))
    assert "2 workers × 2 threads are more than 2 cores." in diagnosis.pitfalls
    assert found(traffic.samples(), replace(known, threads=1)) == (Regime.COMPUTE, None)


def test_a_full_queue():
    traffic, at = Traffic(), 0.0
    for number in range(60):
        traffic.batch([at - 180], begun=at, left=at, handler=20)
        at += 20
        if number % 4 == 0:
            traffic.refused(at)
    diagnosis = diagnose(traffic.samples(), replace(ROOMY, queue_size=9))
    assert (diagnosis.finding.regime, diagnosis.advice.change) == (Regime.FULL, Change("workers", 1, 2))
    assert any("A longer jobQueueSize (9 now) only turns 503s into waiting" in text for text in diagnosis.pitfalls)


def test_time_outside_every_metric():
    traffic = Traffic()
    for number in range(40):
        at = 100.0 * number
        traffic.batch([at, at + 1], begun=at, left=at + 1, handler=20, outside=60)
    diagnosis = diagnose(traffic.samples(), ROOMY)
    assert (diagnosis.finding.regime, diagnosis.advice.change) == (Regime.OUTSIDE, None)
    assert any("unless the handler returns bytes" in text for text in diagnosis.pitfalls)


@pytest.mark.parametrize(
    "change, yaml, command",
    [
        (Change("maxBatchDelay", 100, 1), "maxBatchDelay: 1", "tsbatch reconfigure m --max-batch-delay 1"),
        (Change("batchSize", 8, 4), "batchSize: 4", "tsbatch reconfigure m --batch-size 4"),
        (Change("workers", 1, 2), "minWorkers: 2\nmaxWorkers: 2", "tsbatch scale m --workers 2"),
        (Change("threads", 4, 1), "tsbatch:\n  threads: 1", None),
    ],
)
def test_a_change_says_how_to_make_it(change, yaml, command):
    assert (change.yaml(), change.command("m")) == (yaml, command)


def test_pitfalls_of_neighbours_bursts_and_other_failures():
    base = Evidence(
        requests=100, seconds=10, rate=10, failed=0.2, refused=0, queue=60, assembly=0, handler=40, outside=0,
        latency=100, workers=1, busy=0.2, in_flight=3, batch=8,
    )  # fmt: skip
    traffic = Traffic()
    for number in range(40):
        at, size = 1000.0 * number, 6 + number % 3
        traffic.batch([at] * size, begun=at, left=at, handler=5 + 10 * size)
    cost = evidence_of(traffic.samples(), Known()).cost
    found = find_pitfalls(Regime.QUEUE, replace(base, cost=cost), Known())
    assert [text.split(":")[0] for text in found] == [
        "20 % of the requests failed for other reasons",
        "In a batch of 8, 70 of 85 ms are the computation of the other requests",
        "The workers are busy only 20 % of the time and requests queue nevertheless",
    ]


def test_the_command_is_that_of_the_engine():
    change = Change("workers", 1, 2)
    assert change.command("m") == "tsbatch scale m --workers 2"
    assert change.command("m", "ray") == "tsbatch ray deploy ARCHIVE --name m --replicas 2"
    assert Change("maxBatchDelay", 50, 1).command("m", "ray").endswith("--max-batch-delay 1")
    assert Change("threads", 2, 1).command("m", "ray").endswith("--cpus 1")
    diagnosis = diagnose(
        lonely(gap=500, delay=50, handler=20), replace(ROOMY, model="m", max_batch_delay=50, engine="ray")
    )
    assert diagnosis.to_json()["advice"]["command"].startswith("tsbatch ray deploy ")


def test_a_headline_and_sentences_for_every_regime():
    evidence = evidence_of(assembling(every=20, delay=200, handler=40), Known(batch_size=64))
    for part, regime in (("queue", Regime.QUEUE), ("handler", Regime.COMPUTE), ("outside", Regime.OUTSIDE)):
        large = replace(evidence, assembly=0, busy=0.9, **{part: 900.0}, latency=1000)
        assert find_regime(large).regime is regime
        assert "900" in find_regime(large).headline
    assert any("(batchSize 64), 0 % of them full" in text for text in find_regime(evidence).evidence)


def test_samples_without_a_split_are_refused():
    traffic = Traffic()
    traffic.refused(5)
    with pytest.raises(UsageError, match="send X-Request-Start to a tsbatch handler, or diagnose the log folder"):
        diagnose(traffic.samples(), Known(), source="r.json")
