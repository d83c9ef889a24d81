from __future__ import annotations

import pytest

from tests.unit.ops.tuning.made_up import START, Listed, MadeUp
from tsbatch.ops.report.page import render
from tsbatch.ops.tuning.objective import Goal
from tsbatch.ops.tuning.report import headline, report_of_tuning
from tsbatch.ops.tuning.result import advice, expected, seen, to_json
from tsbatch.ops.tuning.tuner import Tuning

TWO, THREE = START.turned("workers", 2), START.turned("workers", 3)
RATES = {1: 100.0, 2: 180.0, 3: 170.0}
P99 = {1: 50.0, 2: 60.0, 3: 90.0}


def tuned(goal=None, **values):
    system = MadeUp(
        **{"rate": lambda one: RATES[one.workers], "p99": lambda one: P99[one.workers], "noise": 0.01, **values}
    )
    return Tuning(system=system, search=Listed(TWO, THREE), goal=goal or Goal(p99=100), start=START).run()


def test_the_front_has_what_nothing_beats_in_both():
    found = {one.knobs: one for one in seen(tuned().history, Goal(p99=70))}
    assert [one.best for one in found.values()] == [True, True, False]
    assert [one.keeps for one in found.values()] == [True, True, False]


def test_what_to_expect_comes_with_its_interval():
    estimate = expected(tuned())["throughput"]
    assert estimate.low < 180 < estimate.high
    assert estimate.value == pytest.approx(180, rel=0.02)


def test_the_json_says_what_is_recommended_and_every_step():
    told = to_json(tuned(), Goal(p99=100), 10)
    assert (told["schema"], told["kind"]) == (1, "tuned")
    assert told["recommended"] == TWO.to_json()
    assert told["changed"] is True
    assert [step["verdict"] for step in told["steps"]] == ["kept", "no gain"]
    assert told["steps"][0]["change"] == "workers 1 → 2"
    assert told["runs"] == sum(one["runs"] for one in told["seen"])


def test_nothing_to_gain_is_said():
    outcome = tuned(rate=lambda _: 100.0, p99=lambda _: 50.0)
    assert any("nothing to gain" in note for note in advice(outcome, Goal(), 10))
    assert headline(outcome).startswith("Nothing to gain")


def test_no_setting_that_keeps_the_limits_is_said():
    outcome = tuned(goal=Goal(p99=10))
    assert any("no setting was found that keeps the limits" in note for note in advice(outcome, Goal(p99=10), 10))
    assert headline(outcome).startswith("No setting was found")
    assert to_json(outcome, Goal(p99=10), 10)["recommended"] is None


def test_a_noisy_machine_is_told_how_long_to_measure():
    for seed in range(20):
        outcome = tuned(rate=lambda _: 100.0, p99=lambda _: 50.0, noise=0.3, seed=seed)
        notes = [note for note in advice(outcome, Goal(), 10) if "--duration" in note]
        if notes:
            assert float(notes[0].rpartition(" ")[2]) >= 20
            return
    pytest.fail("no tuning of twenty asked for longer runs")


def test_the_report_is_a_page_with_steps_front_and_settings():
    page = render(report_of_tuning(tuned(), Goal(p99=100), {"model": "embed", "load": "8 clients"}, 10))
    for words in (
        "tsbatch tune: embed",
        "workers 1 → 2",
        "Requests/s and P99 of each setting",
        "minWorkers: 2",
        "<circle",
    ):
        assert words in page, words


def test_the_report_of_nothing_found_is_one_too():
    assert "Nothing that was measured keeps the limits" in render(
        report_of_tuning(tuned(goal=Goal(p99=10)), Goal(p99=10), {}, 10)
    )
