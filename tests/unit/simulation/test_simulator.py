"""The simulator where queueing theory is exact, and its table of requests."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tsbatch.bench.send_times import Arrivals
from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import Overhead, Settings
from tsbatch.simulation.service_time import ServiceTime, parse
from tsbatch.simulation.simulator import simulate
from tsbatch.simulation.workload import Clients, take

PATIENT = 10**9
NOTHING = Overhead()
EXPONENTIAL = -np.log1p(-(np.arange(20_000) + 0.5) / 20_000)
"""Equally likely factors of an exponential time with mean 1."""

SERVICE = 10.0


def constant():
    return parse(f"{SERVICE}ms", overhead=NOTHING)


def exponential():
    return ServiceTime(sizes=[1], times=[SERVICE], spread=EXPONENTIAL / EXPONENTIAL.mean(), overhead=NOTHING)


def run(workers, load, service, requests=500_000):
    settings = Settings(workers=workers, batch_size=1, queue_size=PATIENT)
    rate = workers * load * 1000 / SERVICE
    simulated = simulate(settings, take(Arrivals("poisson", rate, seed=4), requests), service, seed=5)
    # What chance really offered; with the load that was meant most of the difference would be the sample's.
    offered = simulated.batches.handler.sum() / simulated.samples.sent[-1] / 1000 / workers
    assert offered == pytest.approx(load, rel=0.01)
    return simulated.samples.queue / SERVICE, offered


def within_md1(wait, load):
    """P(W <= wait) of M/D/1 (Erlang 1909); time in services."""
    terms = range(math.floor(wait) + 1)
    return (1 - load) * sum((load * (k - wait)) ** k / math.factorial(k) * math.exp(-load * (k - wait)) for k in terms)


def beyond_mmc(wait, workers, load):
    """P(W > wait) of M/M/c (Erlang's C); time in mean services."""
    offered = workers * load
    full = offered**workers / math.factorial(workers) / (1 - load)
    busy = full / (sum(offered**k / math.factorial(k) for k in range(workers)) + full)
    return busy * math.exp(-workers * (1 - load) * wait)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_m_d_1(load):
    waits, load = run(1, load, constant())
    assert waits.mean() == pytest.approx(load / (2 * (1 - load)), rel=0.02)
    for wait in (0.5, 1.5, 3.2):
        assert (waits <= wait).mean() == pytest.approx(within_md1(wait, load), abs=0.004)


@pytest.mark.parametrize("workers,load", [(1, 0.5), (2, 0.7), (4, 0.8)])
def test_m_m_c(workers, load):
    waits, load = run(workers, load, exponential())
    busy = beyond_mmc(0, workers, load)
    assert waits.mean() == pytest.approx(busy / (workers * (1 - load)), rel=0.02)
    for wait in (0.01, 1.0):
        assert (waits > wait).mean() == pytest.approx(beyond_mmc(wait, workers, load), rel=0.02)


def test_a_full_queue_loses_as_many_as_theory_says():
    # M/M/1/K with one in service and four waiting, offered more than it can do.
    settings = Settings(batch_size=1, queue_size=4)
    load, places = 1.25, 5
    simulated = simulate(settings, take(Arrivals("poisson", load * 1000 / SERVICE, seed=2), 300_000), exponential())
    lost = (1 - load) * load**places / (1 - load ** (places + 1))
    assert simulated.refused == pytest.approx(lost, rel=0.02)


def test_a_closed_loop_does_as_many_as_theory_says():
    # The machine repairman: six clients that think for 20 ms, one worker.
    clients, think = 6, 20.0
    simulated = simulate(Settings(), Clients(clients, 200_000, think=think, seed=3), exponential(), seed=1)
    terms = [math.factorial(clients) / math.factorial(clients - k) * (SERVICE / think) ** k for k in range(clients + 1)]
    assert simulated.rate == pytest.approx((1 - 1 / sum(terms)) * 1000 / SERVICE, rel=0.01)


def test_the_parts_of_a_latency():
    service = parse("4+3*n", overhead=Overhead(frontend=1.0, batch=2.0, request=0.5))
    simulated = simulate(Settings(batch_size=2, max_batch_delay=10), np.array([0.0, 0.005, 0.006, 0.020]), service)
    rows = simulated.samples
    np.testing.assert_allclose(rows.sent, [0.0, 0.005, 0.006, 0.020])
    np.testing.assert_allclose(rows.batch, [2, 2, 2, 2])
    np.testing.assert_allclose(rows.queue, [0.0, 0.0, 12.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(rows.assembly, [5.0, 0.0, 2.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(rows.handler, [10.0] * 4)
    # hand-over at 5: 2 ms of the batch, 10 of the handler, 0.5 for each answer in turn, 1 outside.
    np.testing.assert_allclose(rows.latency, [5 + 13.5, 14.0, 14 + 13.5, 14.0])
    assert rows.worker.tolist() == [0.0] * 4
    assert rows.capacity.tolist() == [2.0] * 4


def test_refused_requests_have_no_split():
    settings = Settings(batch_size=1, queue_size=1)
    simulated = simulate(settings, np.array([0.0, 0.001, 0.002, 0.1]), constant())
    assert simulated.samples.status.tolist() == [200, 200, 503, 200]
    assert np.isnan(simulated.samples.handler).tolist() == [False, False, True, False]
    assert simulated.refused == 0.25
    assert simulated.seconds == pytest.approx(0.110)
    assert simulated.rate == pytest.approx(3 / 0.110)
    assert simulated.latency(1.0) == pytest.approx(19.0)


def test_the_seed_decides():
    service = parse("5+2*n", variation=0.3)
    arrivals = take(Arrivals("poisson", 100.0), 5000)
    settings = Settings(workers=2, batch_size=4, max_batch_delay=5)
    first, again, other = (simulate(settings, arrivals, service, seed=seed) for seed in (1, 1, 2))
    assert (first.samples.latency == again.samples.latency).all()
    assert (first.samples.latency != other.samples.latency).any()


def test_items_and_lengths_count():
    service = ServiceTime(sizes=[1, 2], times=[10.0, 12.0], per_length=0.1, lengths=(50.0,), overhead=NOTHING)
    simulated = simulate(
        Settings(batch_size=2, max_batch_delay=1),
        np.array([0.0, 0.0, 1.0]),
        service,
        items=np.array([1.0, 3.0, 2.0]),
        lengths=np.array([50.0, 150.0, 40.0]),
    )
    np.testing.assert_allclose(simulated.samples.handler, [26.0, 26.0, 11.0])
    assert simulated.samples.items.tolist() == [1.0, 3.0, 2.0]


def test_nothing_to_simulate():
    with pytest.raises(UsageError, match="no request"):
        simulate(Settings(), np.empty(0), constant())


@pytest.mark.parametrize("arrivals", [[0.1, 0.0], [-0.1, 0.0]])
def test_times_that_do_not_ascend(arrivals):
    with pytest.raises(UsageError, match="ascend"):
        simulate(Settings(), np.array(arrivals), constant())
