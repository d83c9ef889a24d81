from __future__ import annotations

import re
from dataclasses import asdict, replace

import pytest

from tests.unit.tuning.made_up import START, Listed, MadeUp
from tsbatch.report.html_page import render
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.recommendation import advice, expected, seen, to_json
from tsbatch.tuning.tuner import Tuning
from tsbatch.tuning.tuning_report import headline, report_of_tuning

TWO, THREE = START.with_value("workers", 2), START.with_value("workers", 3)
RATES = {1: 100.0, 2: 180.0, 3: 170.0}
P99 = {1: 50.0, 2: 60.0, 3: 90.0}


def tuned(goal=None, **values):
    system = MadeUp(
        **{"rate": lambda one: RATES[one.workers], "p99": lambda one: P99[one.workers], "noise": 0.01, **values}
    )
    return Tuning(system=system, search=Listed(TWO, THREE), goal=goal or Goal(p99=100), start=START).run()


def test_the_front_has_what_nothing_beats_in_both():
    found = {one.settings: one for one in seen(tuned().history, Goal(p99=70))}
    assert [one.best for one in found.values()] == [True, True, False]
    assert [one.keeps for one in found.values()] == [True, True, False]


def test_what_to_expect_comes_with_its_interval():
    estimate = expected(tuned())["throughput"]
    assert estimate.low < 180 < estimate.high
    assert estimate.value == pytest.approx(180, rel=0.02)


def test_what_to_expect_of_memory_is_told_where_it_is_known():
    assert expected(tuned())["memory"].value == pytest.approx(1e8)
    assert "memory" not in expected(tuned(memory=lambda _: None))


def test_the_front_of_an_open_loop_is_not_of_its_requests():
    goal = Goal(objective="p99", open_loop=True)
    outcome = tuned(goal=goal, memory=lambda one: 1e8 * one.workers)
    assert [one.best for one in seen(outcome.history, goal)] == [True, False, False]
    assert to_json(outcome, goal, 10)["front"] == ["memory", "p99"]


def test_the_json_says_what_is_recommended_and_every_step():
    told = to_json(tuned(), Goal(p99=100), 10)
    assert (told["schema"], told["kind"]) == (1, "tuned")
    assert told["recommended"] == asdict(TWO)
    assert told["changed"] is True
    assert told["conclusion"] == "changed"
    assert told["confirming"]["throughput"] == pytest.approx(180, rel=0.05)
    assert [step["verdict"] for step in told["steps"]] == ["kept", "no gain"]
    assert told["steps"][0]["change"] == "workers 1 → 2"
    assert told["runs"] == sum(one["runs"] for one in told["seen"])
    assert [one["knobs"] for one in told["seen"]] == [asdict(settings) for settings in (START, TWO, THREE)]
    assert [one["pareto"] for one in told["seen"]] == [True, True, False]
    assert told["front"] == ["throughput", "p99"]


def test_nothing_to_gain_is_said():
    outcome = tuned(rate=lambda _: 100.0, p99=lambda _: 50.0)
    assert any("nothing to gain" in note for note in advice(outcome, Goal(), 10))
    assert headline(outcome).startswith("Nothing to gain")


def test_runs_that_were_used_up_are_no_end_of_the_search():
    outcome = replace(tuned(rate=lambda _: 100.0), ended="no runs left")
    notes = advice(outcome, Goal(), 10)
    assert not any("nothing to gain" in note for note in notes)
    assert any("re-run the same command with a larger --budget" in note for note in notes)


def test_settings_that_could_not_be_had_are_counted():
    assert "1 of the 2 settings that were tried did not work; the steps say why" in advice(
        tuned(refused=(TWO,)), Goal(), 10
    )


def test_memory_that_nobody_could_read_is_not_passed_over():
    goal, unknown = Goal(memory=1e9), {"memory": lambda _: None}
    said = "--max-memory was not checked: the workers' memory could not be read"
    assert said in advice(tuned(goal=goal, **unknown), goal, 10)
    assert said not in advice(tuned(goal=goal), goal, 10)
    assert said not in advice(tuned(**unknown), Goal(), 10)
    goal = Goal(objective="memory")
    assert any(
        "could not be read, so memory use cannot be compared" in note for note in advice(tuned(**unknown), goal, 10)
    )


def test_gpu_memory_that_was_not_checked_is_told():
    said = "--max-gpu-memory was not checked: the workers hold none, or nvidia-smi does not report it"
    goal = Goal(gpu_memory=0.8)
    assert said in advice(tuned(goal=goal), goal, 10)
    assert said not in advice(tuned(goal=goal, gpu_memory=lambda _: 0.2), goal, 10)
    assert said not in advice(tuned(), Goal(), 10)


def test_what_makes_the_runs_doubtful_is_said_once_for_each_kind():
    outcome = tuned()
    runs = outcome.history.runs
    runs[0] = replace(runs[0], doubts={"busy": "the load generator was the bottleneck: it used 0.93"})
    runs[2] = replace(runs[2], doubts={"busy": "the load generator was the bottleneck: it used 0.97"})
    said = [note for note in advice(outcome, Goal(), 10) if "bottleneck" in note]
    assert said == [f"the load generator was the bottleneck: it used 0.97 (in 2 of {len(runs)} runs)"]


def test_no_setting_that_keeps_the_limits_is_said():
    outcome = tuned(goal=Goal(p99=10))
    assert any("no settings were found that meet the limits" in note for note in advice(outcome, Goal(p99=10), 10))
    assert headline(outcome).startswith("No settings were found")
    assert to_json(outcome, Goal(p99=10), 10)["recommended"] is None


def test_a_noisy_machine_is_told_how_long_to_measure():
    for seed in range(20):
        outcome = tuned(rate=lambda _: 100.0, p99=lambda _: 50.0, noise=0.3, seed=seed)
        notes = [note for note in advice(outcome, Goal(), 10) if "--duration" in note]
        if notes:
            # The journal of a tuning with another duration is not gone on with.
            assert float(re.search(r"--duration (\d+) --fresh", notes[0])[1]) >= 20
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
    assert "No measured settings meet the limits" in render(
        report_of_tuning(tuned(goal=Goal(p99=10)), Goal(p99=10), {}, 10)
    )
