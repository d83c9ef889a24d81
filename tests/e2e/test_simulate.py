"""The simulator beside a real TorchServe, in one cell; the others are in the acceptance tests."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import simulator_accuracy as accuracy
from tsbatch.bench.send_times import Arrivals
from tsbatch.simulation.batching_rules import Overhead
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.simulator import simulate
from tsbatch.simulation.workload import take

pytestmark = [pytest.mark.alone, pytest.mark.slow]

CELL = accuracy.Cell(1, 8, 40, 80, 10, 0.6)


def test_the_same_arrivals_in_both(server_factory, tmp_path):
    with server_factory() as server:
        sleepers = accuracy.Sleepers(server, tmp_path)
        sleepers.warm_up(2)
        with sleepers.model(CELL) as name:
            sleepers.load(name, seconds=1.0, clients=8)
            times = take(Arrivals("poisson", 25.0, seed=1), 200)
            samples = sleepers.load(name, arrivals=Arrivals("trace", times=times.tolist()))
    service = ServiceTime(sizes=[1, 2], times=[90.5, 100.5], overhead=Overhead(frontend=1.0, batch=1.0, request=0.1))
    simulated = simulate(CELL.settings, samples.sent - samples.sent.min(), service).samples
    assert samples.ok.all()
    # A few ms decide in which batch somebody travels, so it is the whole that agrees; the machine may be busy.
    assert np.mean(samples.batch) == pytest.approx(np.mean(simulated.batch), rel=0.15)
    assert np.median(samples.latency) == pytest.approx(np.median(simulated.latency), rel=0.15)
    assert np.quantile(samples.latency, 0.9) == pytest.approx(np.quantile(simulated.latency, 0.9), rel=0.2)
