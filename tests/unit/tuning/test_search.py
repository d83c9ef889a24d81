"""The careful search against the simulator: near the best of a whole grid, with a quarter of its measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest
from _simulated_server import CURVES, GRID, SimulatedServer

from tests.unit.tuning.made_up import START, observation, step
from tsbatch.tuning.history import History
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.ranking import Traffic
from tsbatch.tuning.search import CoordinateSearch
from tsbatch.tuning.search_space import ModelSettings, Space
from tsbatch.tuning.tuner import Tuning

SMALL = Space(workers=(1, 2), batch_sizes=(4, 8), delays=(10, 100))


def careful(space=SMALL):
    return CoordinateSearch(Goal(), space, Traffic(clients=20))


class TestWithoutEvidence:
    """The answers tell nothing of where the time went."""

    def history(self, *steps):
        runs = [observation(), *(after for one in steps for _, after in one.pairs)]
        return History(start=[observation()], steps=list(steps), runs=runs)

    def test_the_settings_are_changed_in_their_order(self):
        proposed = careful().propose(self.history())
        assert proposed.setting == "maxBatchDelay"
        assert proposed.settings == START.with_value("maxBatchDelay", 10)
        tried = step(proposed.settings, setting="maxBatchDelay")
        assert careful().propose(self.history(tried)).setting == "workers"

    def test_nothing_is_tried_twice_and_it_ends(self):
        history = self.history()
        seen = set()
        while (proposed := careful().propose(history)) is not None:
            assert proposed.settings not in seen
            assert len(START.differences(proposed.settings)) == 1
            seen.add(proposed.settings)
            history.steps.append(step(proposed.settings, setting=proposed.setting))
        assert len(seen) == 3


@pytest.fixture(scope="module")
def first_runs():
    server = SimulatedServer(CURVES["mostly fixed, 40 + 1·n"], Traffic(clients=20), noise=0.0)
    runs = [server.measure(ModelSettings(1, 32, 100))]
    return History(start=runs, runs=list(runs))


def test_the_diagnosis_speaks_first_and_says_why(first_runs):
    proposed = CoordinateSearch(Goal(), GRID, Traffic(clients=20)).propose(first_runs)
    assert proposed.setting == "maxBatchDelay"
    assert "batches leave because maxBatchDelay is over" in proposed.why
    assert any("the simulator expects requests/s" in text for text in proposed.evidence)
    assert proposed.predicted.throughput > first_runs.start[0].figures.throughput


def test_it_speaks_first_even_where_another_setting_promises_more(first_runs):
    space = Space(workers=(1,), batch_sizes=(16, 32), delays=(90, 100))
    proposed = CoordinateSearch(Goal(), space, Traffic(clients=20)).propose(first_runs)
    assert proposed.settings == ModelSettings(1, 32, 90)
    other = CoordinateSearch(Goal(), replace(space, delays=(100,)), Traffic(clients=20)).propose(first_runs)
    assert other.settings == ModelSettings(1, 16, 100)
    assert other.predicted.throughput > proposed.predicted.throughput


@pytest.fixture(scope="module")
def two_workers():
    server = SimulatedServer(CURVES["mostly fixed, 40 + 1·n"], Traffic(rate=120.0), noise=0.0)
    runs = [server.measure(ModelSettings(2, 32, 1))]
    return History(start=runs, runs=list(runs))


@pytest.mark.parametrize("limit, tried", [(1.0, True), (0.97, True), (0.88, False)])
def test_fewer_workers_are_tried_when_they_may_keep_the_limit(two_workers, limit, tried):
    def proposed(p99):
        space = Space(workers=(1, 2), batch_sizes=(32,), delays=(1,))
        return CoordinateSearch(Goal(objective="memory", p99=p99), space, Traffic(rate=120.0)).propose(two_workers)

    expected = proposed(1e6).predicted.p99
    assert expected > 1.1 * two_workers.start[0].figures.p99
    found = proposed(limit * expected)
    assert (found and found.settings) == (ModelSettings(1, 32, 1) if tried else None)


def test_at_last_a_size_between_those_that_were_seen_is_tried():
    server = SimulatedServer(CURVES["a knee at 8"], Traffic(clients=20), noise=0.0)
    runs = [server.measure(ModelSettings(4, size, 5)) for size in (32, 4, 1)]
    start = [server.measure(ModelSettings(4, 4, 5))]
    space = Space(workers=(4,), batch_sizes=(1, 4, 8, 32), delays=(5,))

    def proposed(p99):
        search = CoordinateSearch(Goal(objective="p99", p99=p99), space, server.traffic)
        return search.propose(History(start=start, runs=[*runs, *start]))

    assert proposed(None).settings == ModelSettings(4, 8, 5)
    assert "were not seen" in proposed(None).why
    assert proposed(40.0).settings == ModelSettings(4, 8, 5)
    runs.append(server.measure(ModelSettings(4, 8, 5)))
    assert proposed(None) is None


@pytest.mark.parametrize("curve", CURVES)
def test_near_the_best_of_the_grid_with_a_quarter_of_its_measurements(curve):
    server = SimulatedServer(CURVES[curve], Traffic(clients=20), noise=0.02, seed=3)
    truth = {settings: server.truth(settings, 3000) for settings in GRID.combinations()}
    limit = 1.3 * min(figures.p99 for figures in truth.values())
    goal = Goal(p99=limit)
    best = max(figures.throughput for figures in truth.values() if not goal.broken(figures))
    outcome = Tuning(
        system=server, search=CoordinateSearch(goal, GRID, server.traffic), goal=goal, start=ModelSettings(1, 32, 100)
    ).run()
    assert server.runs <= len(truth) // 4
    assert outcome.recommended is not None
    found = server.truth(outcome.recommended)
    assert not goal.broken(found)
    assert found.throughput >= 0.95 * best, outcome.recommended


@pytest.mark.parametrize(
    "curve, prepares",
    [("mostly fixed, 40 + 1·n", ModelSettings(3, 8, 5)), ("mostly each, 2 + 12·n", None), ("a knee at 8", None)],
)
def test_two_settings_go_first_when_they_promise_more_than_twice_as_much_as_one(curve, prepares):
    """Of 20 clients each of three workers has seven: batches of 8 are worth a wait, for which 32 would be too large."""
    server = SimulatedServer(CURVES[curve], Traffic(clients=20), noise=0.0, requests=2000)
    runs = [server.measure(ModelSettings(3, 32, 1))]
    proposed = CoordinateSearch(Goal(), GRID, Traffic(clients=20)).propose(History(start=runs, runs=list(runs)))
    assert proposed.prepares == prepares
    assert proposed.setting == ("maxBatchDelay" if prepares else "workers")
