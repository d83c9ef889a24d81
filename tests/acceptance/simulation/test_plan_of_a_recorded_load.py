"""Plan for a recorded trace at 10, 100 and 1000 times its rate, in under a minute.

What theory says exactly is in tests/unit/simulation/test_planner.py, which belongs to this line too.
"""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from tests.unit.simulation.results import result_of
from tsbatch.bench.send_times import Arrivals
from tsbatch.cli.program import main
from tsbatch.simulation.batching_rules import Overhead, Settings
from tsbatch.simulation.service_time import Machine, ServiceTime
from tsbatch.simulation.simulator import simulate
from tsbatch.simulation.workload import take

MINUTE = 60.0


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A load test of a model on two cores, with bursts, as its file."""
    service = ServiceTime(
        sizes=[1, 8],
        times=[24.0, 60.0],
        spread=[0.9, 1.0, 1.0, 1.1],
        overhead=Overhead(frontend=1.0, batch=1.0, request=0.1),
        machine=Machine(workers=1),
    )
    arrivals = take(Arrivals("bursts", 60.0, seed=9, factor=2.0, burst=2.0), 30_000)
    simulated = simulate(Settings(batch_size=8, max_batch_delay=10, queue_size=1000), arrivals, service)
    watched = [{"name": "worker 9000", "cpu": 0.5, "memory_rss": 10**9, "memory_private": 10**9}]
    path = tmp_path_factory.mktemp("plan") / "bench.json"
    result_of(simulated.samples, watched=watched, cores=2).save(path)
    return path


def test_at_10_100_and_1000_times_its_rate(recorded, capsys, record_property):
    began = time.perf_counter()
    words = ["--service", str(recorded), "--trace", str(recorded), "--p99", "150", "--scale", "10,100,1000", "--json"]
    assert main(["plan", *words]) == 0
    seconds = time.perf_counter() - began
    plans = json.loads(capsys.readouterr().out)["plans"]
    record_property("seconds", round(seconds, 1))
    for plan in plans:
        figures = {key: plan[key] for key in ("rate", "machines", "settings", "margin")}
        record_property(f"{plan['rate']:.0f} requests/s", {**figures, "p99": plan["at_rate"]["p99"]})
    assert seconds < MINUTE
    for plan in plans:
        assert plan["at_rate"]["p99"] <= 150
        assert plan["at_rate"]["refused"] <= 0.001
        assert plan["margin"] >= 0.1
        assert any("1 worker" in sentence or "batches of" in sentence for sentence in plan["measured"])
        assert plan["extrapolated"]
    # One of seven is missed; one of hundreds makes less of a difference than two simulations have.
    assert plans[0]["one_down"]["p99"] > 1.1 * plans[0]["at_rate"]["p99"]
    assert all(plan["one_down"]["p99"] > 0.95 * plan["at_rate"]["p99"] for plan in plans)
    machines = np.array([plan["machines"] for plan in plans])
    np.testing.assert_allclose(machines[1:] / machines[:-1], 10, rtol=0.15)
