"""What is needed for a load."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.simulation.test_simulator import beyond_mmc, exponential, within_md1
from tsbatch.bench.send_times import Arrivals
from tsbatch.errors import UsageError
from tsbatch.simulation import planner as planning
from tsbatch.simulation.batching_rules import Overhead, Settings
from tsbatch.simulation.capacity_plan import grounds_of_machine, make_plan
from tsbatch.simulation.planner import Goal, Limits, Planner, Stream, capacity, machines_for, service_for
from tsbatch.simulation.service_time import Machine, ServiceTime, parse
from tsbatch.simulation.workload import rate_of, scaled, take

NOTHING = Overhead()
SINGLE = Limits(workers=1, batch_size=1, queue_size=10**9)


def planner(service, p99, limits, *, stream=None, headroom=0.0, fine=20_000):
    return Planner(stream or Stream(seed=3), [service], Goal(p99=p99, headroom=headroom), limits, fine=fine)


def highest(keeps):
    """The highest load of a worker at which ``keeps`` holds, by halving."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def test_as_many_machines_as_m_d_1_says():
    # Service 10 ms; P99 within 42 ms is a wait of 3.2 services for 99 in 100.
    load = highest(lambda load: within_md1(3.2, load) >= 0.99)
    (found,) = planner(parse("10ms", overhead=NOTHING), 42.0, SINGLE, fine=200_000).candidates(1000.0)
    assert found.rate == pytest.approx(load * 100, rel=0.02)
    assert machines_for(100_000, found.rate) == pytest.approx(100_000 / (load * 100), rel=0.02)


def test_as_many_machines_as_m_m_c_says():
    # The whole time in the system: a wait and a service of one's own (mean 1).
    def slower_than(time, load):
        rate, busy = 4 * (1 - load) + 1e-9, beyond_mmc(0, 4, load)
        return (1 - busy) * math.exp(-time) + busy * (rate * math.exp(-time) - math.exp(-rate * time)) / (rate - 1)

    load = highest(lambda load: slower_than(7.0, load) <= 0.01)
    limits = replace(SINGLE, workers=4)
    found = planner(exponential(), 70.0, limits, fine=200_000).candidates(10_000.0)
    assert found[0].settings.workers == 4
    assert found[0].rate == pytest.approx(load * 400, rel=0.02)


def test_a_batch_pays_where_its_price_is_fixed():
    found = planner(parse("20+1*n", overhead=NOTHING), 100.0, Limits(workers=1, batch_size=16)).candidates(1000.0)
    assert found[0].settings.batch_size == 16
    assert found[0].rate > 250
    alone = planner(parse("20+1*n", overhead=NOTHING), 100.0, Limits(workers=1, batch_size=1)).candidates(1000.0)
    assert alone[0].rate < 1000 / 21


def test_few_workers_where_few_are_enough():
    found = planner(parse("10ms", overhead=NOTHING), 100.0, Limits(workers=4, batch_size=1)).candidates(20.0)
    assert found[0].settings.workers == 1


def test_headroom_counts_when_settings_are_chosen():
    service, limits = parse("10ms", overhead=NOTHING), Limits(workers=2, batch_size=1)
    assert planner(service, 100.0, limits).candidates(60.0)[0].settings.workers == 1
    assert planner(service, 100.0, limits, headroom=1.0).candidates(60.0)[0].settings.workers == 2


def test_the_fewest_machines_of_all_settings():
    service = parse("15+2*n", overhead=Overhead(batch=1.0, request=0.1))
    limits = Limits(workers=2, batch_size=8)
    one = planner(service, 80.0, limits, fine=5_000)
    best = max(one.highest_rate(settings, service, 5_000) for settings in limits.grid(80.0))
    assert one.candidates(2000.0)[0].rate >= 0.98 * best


def test_a_delay_that_alone_breaks_the_goal_is_not_for_quiet_hours_either():
    one = planner(parse("10ms", overhead=NOTHING), 50.0, SINGLE)
    slow = Settings(batch_size=8, max_batch_delay=45)
    assert one.highest_rate(slow, one.services[0], 5000) == 0
    assert one.highest_rate(replace(slow, max_batch_delay=5), one.services[0], 5000) > 0


def test_a_goal_that_nothing_keeps():
    with pytest.raises(UsageError, match=r"never wait is 30\.0 ms"):
        planner(parse("30ms", overhead=NOTHING), 20.0, SINGLE).candidates(10.0)


def test_settings_come_next_when_those_that_looked_better_do_not_stand(monkeypatch):
    one = planner(parse("10ms", overhead=NOTHING), 100.0, Limits(workers=9, batch_size=1), fine=8000)
    standing = set()

    def seek(settings, service, count):
        return 90.0 * settings.workers if count < 8000 or settings.workers in standing else 0.0

    monkeypatch.setattr(one, "highest_rate", seek)
    with pytest.raises(UsageError, match=r"never wait is 10\.0 ms"):
        one.candidates(8000.0)
    for rate, workers in ((8000.0, 4), (8000.0, 2), (8000.0, 1), (10.0, 9)):
        # For much nine, eight … workers look best and few do not come into question at first; for little few do.
        standing = {workers}
        again = planner(parse("10ms", overhead=NOTHING), 100.0, one.limits, fine=8000)
        monkeypatch.setattr(again, "highest_rate", seek)
        (found,) = again.candidates(rate)
        assert (found.settings.workers, found.rate) == (workers, 90.0 * workers)


@pytest.mark.parametrize("seed", [3, 10])
def test_what_short_simulations_promise_need_not_hold(seed):
    service = parse("20ms", variation=0.5, overhead=NOTHING)
    stream = Stream(seed=seed)
    with pytest.raises(
        UsageError, match=r"no settings keep P99 within 53 ms: the P99 of requests that never wait is 5[34]\.\d ms"
    ):
        planner(service, 53.0, SINGLE, stream=stream, fine=50_000).candidates(10.0)


def test_refused_requests_break_the_goal():
    limits = Limits(workers=1, batch_size=1, queue_size=1)
    rate = planner(parse("10ms", overhead=NOTHING), 1000.0, limits).candidates(10.0)[0].rate
    patient = planner(parse("10ms", overhead=NOTHING), 1000.0, SINGLE).candidates(10.0)[0].rate
    assert rate < 0.2 * patient


def test_the_grid():
    grid = list(Limits(workers=2, batch_size=12).grid(15.0))
    assert {settings.batch_size for settings in grid} == {1, 2, 4, 8, 12}
    assert {settings.max_batch_delay for settings in grid} == {1, 2, 5, 10}
    assert {settings.workers for settings in grid} == {1, 2}
    assert len(grid) == 2 * (1 + 4 * 4)


def test_what_is_possible_at_most():
    service = parse("5+5*n", overhead=Overhead(batch=1.0, request=0.5))
    assert capacity(Settings(workers=3, batch_size=4), service) == pytest.approx(3 * 4000 / (25 + 3))
    assert machines_for(100, 0) == math.inf
    assert machines_for(100, 50) == 2
    assert machines_for(100.5, 50) == 3
    assert machines_for(1, 50) == 1


def test_the_nearest_measurement_counts():
    def measured(workers, time):
        return ServiceTime(
            sizes=[1], times=[time], machine=Machine(workers=workers, cores=2, worker_cores=1.0), source="b"
        )

    services = [measured(1, 10.0), measured(2, 13.0)]
    assert service_for(services, 1).times == [10.0]
    assert service_for(services, 2).times == [13.0]
    assert service_for(services, 4).times == [26.0]


def test_the_busiest_stretch_of_a_recording():
    times = np.concatenate([np.arange(0, 100, 1.0), np.arange(100, 110, 0.01)])
    stretch = Stream("trace", times).at((len(times) - 1) / times[-1], 500)
    assert len(stretch) == 500
    assert stretch[0] == 0
    assert stretch[-1] < 6
    assert len(Stream("trace", times).at((len(times) - 1) / times[-1], 2 * len(times))) == 2 * len(times)


def test_a_short_share_is_told_by_several_machines():
    times = np.arange(0, 100, 0.1)
    shares = Stream("trace", times).at(1.0, 1000)
    assert 900 < len(shares) < 1100
    assert (np.diff(shares) >= 0).all()
    assert (np.diff(shares) > 60).sum() in (8, 9), "nine or ten machines, one after the other"
    assert len(set(np.round(shares % 160.0, 3))) > 500, "each with requests of its own"


SHORT = np.arange(0, 10, 0.02)
"""The times of a load test of ten seconds."""


@pytest.mark.parametrize("rate", [0.125, 0.008])
def test_a_short_recording_makes_as_many_requests_as_a_p99_needs(rate):
    for count in (5000, 50_000):
        found = Stream("trace", SHORT).at(rate, count)
        assert len(found) == pytest.approx(count, rel=0.1)
        assert found[0] >= 0
        assert (np.diff(found) >= 0).all()


def test_a_goal_that_a_short_recording_does_not_let_slip():
    # A batch takes up to 625 ms, which twenty-five requests need not tell.
    service = ServiceTime(sizes=[1], times=[500.0], spread=np.linspace(0.75, 1.25, 100))
    stream = Stream("trace", SHORT, seed=3)
    with pytest.raises(UsageError, match="no settings keep P99 within 600 ms"):
        planner(service, 600.0, SINGLE, stream=stream, fine=50_000).candidates(50.0)
    found, drawn = (
        planner(service, 1000.0, SINGLE, stream=one, fine=50_000).highest_rate(Settings(), service, 50_000)
        for one in (stream, Stream(seed=3))
    )
    # Evenly recorded, but a machine's share of it is as good as drawn.
    assert found == pytest.approx(drawn, rel=0.15)


def test_of_a_long_recording_only_what_is_simulated_is_scaled(monkeypatch):
    times = np.sort(np.random.default_rng(0).uniform(0, 86_400, 200_000))
    times[1000:9000] = np.linspace(times[1000], times[1000] + 100, 8000)
    times = np.sort(times)
    sizes = []

    def watched(times, factor, seed, **end):
        sizes.append(len(times))
        return scaled(times, factor, seed, **end)

    monkeypatch.setattr(planning, "scaled", watched)
    stream = Stream("trace", times)
    for factor in (1.0, 2.5, 100.0, 10_000.0):
        found = stream.at(factor * rate_of(times), 5000)
        assert len(found) == 5000
        assert sizes[-1] <= 1.25 * 5000 / factor + 1
        assert 5000 / found[-1] > 0.9 * factor * 80, "the busiest, where 80 came a second"


def test_a_stream_is_made_once_for_settings_that_are_sought_at_the_same_rates(monkeypatch):
    made, make = [], Stream.at
    monkeypatch.setattr(Stream, "at", lambda self, rate, count: made.append((rate, count)) or make(self, rate, count))
    planner(parse("10+2*n", overhead=NOTHING), 60.0, Limits(workers=2, batch_size=4), fine=5000).candidates(500.0)
    assert len(made) == len(set(made))


def test_drawn_streams():
    assert Stream("bursts").at(100.0, 50).tolist() == take(Arrivals("bursts", 100.0), 50).tolist()


# ---- plans ------------------------------------------------------------------------------------------------------


def planned(rate=1000.0, **options):
    service = parse("10+2*n", overhead=Overhead(frontend=1.0, batch=1.0, request=0.1))
    limits = Limits(workers=2, batch_size=8)
    return make_plan(planner(service, 100.0, limits, headroom=0.1, fine=8000), rate, **options)


def test_a_plan_keeps_its_goal_and_says_how_far():
    plan = planned(price=2.5)
    assert plan.machines == machines_for(1100, plan.chosen.rate)
    assert plan.point.p99 <= 100
    assert plan.point.refused <= 0.001
    assert plan.margin == pytest.approx(plan.machines * plan.chosen.rate / 1000 - 1)
    assert plan.margin >= 0.1
    at_margin = [point for point in plan.curve if point.rate > 1000 * (1 + plan.margin) * 1.02]
    assert all(point.p99 > 95 or point.refused > 0.001 for point in at_margin)
    assert plan.down is not None
    assert plan.down.machines == plan.machines - 1
    assert plan.down.p99 > plan.point.p99
    told = plan.to_json()
    assert told["cost"] == 2.5 * plan.machines
    assert told["settings"]["batchSize"] == plan.chosen.settings.batch_size
    assert [point["needed"] for point in told["curve"]] == sorted(point["needed"] for point in told["curve"])


def test_one_machine_cannot_be_missed():
    plan = planned(rate=20.0)
    assert (plan.machines, plan.down) == (1, None)
    assert plan.to_json()["one_down"] is None


def test_what_was_measured_and_what_is_guessed():
    machine = Machine(workers=1, cores=4, worker_cores=1.5)
    service = ServiceTime(sizes=[1, 8], times=[10.0, 30.0], machine=machine, source="b.json")
    measured, guessed = grounds_of_machine([service], service, 1, 8)
    assert measured[0] == "batches of 1 to 8 items: b.json"
    assert measured[-1] == "1 concurrent worker"
    assert guessed == []
    _, guessed = grounds_of_machine([service], service, 3, 16)
    assert guessed[0].startswith("batches of more than 8 items")
    assert "each needs 1.50 of the machine's 4 cores" in guessed[1]
    unknown = replace(service, machine=Machine(workers=1))
    assert grounds_of_machine([unknown], unknown, 2, 8)[1] == ["2 workers: assumed not to slow each other down"]
    given = parse("10ms")
    assert grounds_of_machine([given], given, 1, 1)[0] == []


def test_what_a_machine_can_do_is_sought_once_for_all_rates(monkeypatch):
    one = planner(parse("10ms", overhead=NOTHING), 100.0, Limits(workers=2, batch_size=1), fine=8000)
    sought, seek = [], one.highest_rate
    monkeypatch.setattr(
        one,
        "highest_rate",
        lambda settings, service, count: sought.append((settings, count)) or seek(settings, service, count),
    )
    for rate in (20.0, 100.0, 2000.0, 2000.0):
        one.candidates(rate)
    assert {count for _, count in sought} == {5000, 8000}, "roughly, then what is told"
    assert len(sought) == len(set(sought))
