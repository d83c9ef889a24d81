"""A change is kept only when it gains more than the noise; nothing to gain is seldom taken for a gain."""

from __future__ import annotations

import math

import pytest

from tests.unit.tuning.made_up import START, Listed, MadeUp, figures, observation
from tsbatch.tuning.history import History
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.significance import WANTED, judge, seconds_needed, spread_of
from tsbatch.tuning.tuner import Tuning

TWO = START.with_value("workers", 2)


def history(*rates):
    runs = [observation(rate=rate) for rate in rates]
    return History(start=runs, runs=runs)


def test_the_spread_of_a_pair_is_that_of_two_runs():
    spread = spread_of(history(100, 100 * math.exp(0.1)), "throughput")
    assert spread.pair == pytest.approx(0.1)
    assert spread.run == pytest.approx(0.1 / math.sqrt(2))
    assert spread.freedom == 1


def test_pairs_of_the_step_under_way_count_by_their_spread_and_not_by_their_gain():
    pairs = [(figures(100), figures(200)), (figures(100), figures(200))]
    found = spread_of(history(100, 102, 98, 100), "throughput", pairs)
    assert found.freedom == 4
    assert found.pair < spread_of(history(100, 102, 98, 100), "throughput").pair


def test_a_great_gain_is_seen_at_the_first_pair():
    judgement, final = judge(history(100, 101, 99, 100), Goal(), [(figures(100), figures(200))])
    assert (judgement.verdict, final) == ("kept", True)
    assert judgement.gain == pytest.approx(2)
    assert judgement.low > 1.5


def test_a_small_gain_that_is_sure_is_not_worth_it():
    judgement, final = judge(history(100, 100, 100, 100), Goal(), [(figures(100), figures(101))])
    assert (judgement.verdict, final) == ("no gain", True)


def test_a_loss_ends_the_step_at_once():
    judgement, final = judge(history(100, 101, 99, 100), Goal(), [(figures(100), figures(80))])
    assert (judgement.verdict, final) == ("no gain", True)


def test_a_gain_within_the_noise_asks_for_another_pair():
    judgement, final = judge(history(100, 110, 92, 100), Goal(), [(figures(100), figures(115))])
    assert not final
    assert judgement.verdict == "cannot tell"


def test_a_limit_that_is_surely_broken_ends_the_step_at_once():
    judgement, final = judge(history(100, 101, 99, 100), Goal(p99=60), [(figures(100), figures(500, p99=90))])
    assert (judgement.verdict, final) == ("breaks a limit", True)


def test_failures_count_as_they_are():
    judgement, final = judge(history(100, 101, 99, 100), Goal(), [(figures(100), figures(500, failed=0.2))])
    assert (judgement.verdict, final) == ("breaks a limit", True)
    assert "failed 20 % exceeds the limit of 1 %" in judgement.why


def candidates():
    return [ModelSettings(1, size, 100) for size in (1, 2, 4, 16, 32)] + [
        ModelSettings(1, 8, delay) for delay in (1, 10, 50)
    ]


@pytest.mark.parametrize("noise, drift", [(0.03, 0.0), (0.1, 0.0), (0.03, 0.05)], ids=["calm", "noisy", "drifting"])
def test_where_all_are_equal_at_most_five_tunings_in_a_hundred_keep_anything(noise, drift):
    tunings = 400
    wrong = 0
    for seed in range(tunings):
        system = MadeUp(noise=noise, drift=drift, seed=seed)
        outcome = Tuning(system=system, search=Listed(*candidates()), goal=Goal(), start=START, budget=60).run()
        wrong += outcome.changed
    assert wrong <= 0.05 * tunings


def test_a_change_of_a_fifth_is_found_on_a_calm_machine():
    found = 0
    for seed in range(50):
        system = MadeUp(rate=lambda settings: 120.0 if settings == TWO else 100.0, noise=0.03, seed=seed)
        found += Tuning(system=system, search=Listed(TWO), goal=Goal(), start=START).run().changed
    assert found >= 40


def test_where_noise_hides_a_gain_that_must_not_be_overlooked_longer_runs_are_asked_for():
    asked = 0
    for seed in range(50):
        system = MadeUp(rate=lambda settings: WANTED * 100 if settings == TWO else 100.0, noise=0.2, seed=seed)
        outcome = Tuning(system=system, search=Listed(TWO), goal=Goal(), start=START).run()
        (step,) = outcome.history.steps
        needed = seconds_needed(10, step)
        asked += needed is not None and needed > 10
    assert asked >= 35
