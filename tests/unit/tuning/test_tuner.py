from __future__ import annotations

import re

import pytest

from tests.unit.tuning.made_up import START, Listed, MadeUp
from tsbatch.errors import ServerError
from tsbatch.tuning.journal import Log
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.recommendation import advice, conclusion
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Tuning

TWO = START.with_value("workers", 2)
THREE = START.with_value("workers", 3)


def tuned(system, *candidates, goal=None, budget=36):
    tuning = Tuning(system=system, search=Listed(*candidates), goal=goal or Goal(), start=START, budget=budget)
    return tuning.run()


def by_workers(**values):
    return lambda settings: values[f"w{settings.workers}"]


def test_a_gain_beyond_the_noise_is_kept_and_confirmed():
    system = MadeUp(rate=by_workers(w1=100, w2=180), noise=0.01)
    outcome = tuned(system, TWO)
    assert outcome.recommended == TWO
    assert outcome.changed
    assert system.log[-2:] == [TWO, TWO]
    assert [run.settings for run in outcome.confirmed] == [TWO, TWO]


def test_the_first_pair_begins_with_the_run_that_has_just_been_made():
    system = MadeUp(rate=by_workers(w1=100, w2=180), noise=0.001)
    tuned(system, TWO)
    assert system.log == [START] * 4 + [TWO] + [TWO, TWO]


def test_incumbent_and_candidate_take_turns_in_turn():
    system = MadeUp(noise=0.05, seed=1)
    outcome = tuned(system, TWO)
    assert len(outcome.history.steps[0].pairs) > 1
    assert system.log[4:7] == [TWO, TWO, START]


def test_nothing_to_gain_is_said_and_nothing_changes():
    outcome = tuned(MadeUp(noise=0.01), TWO, THREE)
    assert outcome.recommended == START
    assert not outcome.changed
    assert [step.kept for step in outcome.history.steps] == [False, False]


def test_a_gain_that_a_gpu_has_no_room_for_is_none():
    system = MadeUp(
        rate=by_workers(w1=100, w2=180, w3=300), gpu_memory=lambda settings: 0.32 * settings.workers, noise=0.01
    )
    outcome = tuned(system, THREE, TWO, goal=Goal())
    assert [step.judgement.verdict for step in outcome.history.steps] == ["breaks a limit", "kept"]
    assert outcome.history.steps[0].judgement.why == "GPU memory 96 % exceeds the limit of 90 %"
    assert outcome.recommended == TWO


def test_each_step_is_measured_beside_the_best_so_far():
    system = MadeUp(rate=by_workers(w1=100, w2=180, w3=300), noise=0.01)
    outcome = tuned(system, TWO, THREE)
    assert [step.baseline for step in outcome.history.steps] == [START, TWO]
    assert outcome.recommended == THREE


def test_a_setting_that_breaks_a_limit_is_not_kept_however_much_it_gains():
    system = MadeUp(rate=by_workers(w1=100, w2=500), p99=by_workers(w1=50, w2=90), noise=0.01)
    outcome = tuned(system, TWO, goal=Goal(p99=80))
    assert outcome.history.steps[0].judgement.verdict == "breaks a limit"
    assert outcome.recommended == START


def test_a_setting_that_only_may_break_a_limit_is_not_kept_either():
    system = MadeUp(rate=by_workers(w1=100, w2=500), p99=by_workers(w1=50, w2=79), noise=0.03)
    outcome = tuned(system, TWO, goal=Goal(p99=80))
    assert outcome.history.steps[0].judgement.verdict == "breaks a limit"
    assert "too close to the limit" in outcome.history.steps[0].judgement.why


def test_when_a_limit_is_broken_at_first_that_is_what_gets_better():
    system = MadeUp(rate=by_workers(w1=100, w2=60), p99=by_workers(w1=300, w2=60), noise=0.01)
    outcome = tuned(system, TWO, goal=Goal(p99=80))
    assert outcome.history.steps[0].judgement.aim == "p99"
    assert outcome.recommended == TWO


def test_nothing_is_recommended_when_nothing_keeps_the_limits():
    system = MadeUp(p99=by_workers(w1=300, w2=200), noise=0.01)
    outcome = tuned(system, TWO, goal=Goal(p99=80))
    assert outcome.history.steps[0].kept
    assert outcome.recommended is None


class Later(MadeUp):
    """Some settings break the limit of 80 ms from their second run on."""

    worse = (TWO,)

    def measure(self, settings):
        found = super().measure(settings)
        return (
            MadeUp(p99=lambda _: 500.0).measure(settings)
            if settings in self.worse and self.log.count(settings) > 1
            else found
        )


def test_a_recommendation_that_breaks_a_limit_in_its_confirming_run_gives_way_to_the_one_before():
    system = Later(rate=by_workers(w1=100, w2=180), noise=0.001)
    outcome = tuned(system, TWO, goal=Goal(p99=80))
    [step] = outcome.history.steps
    assert step.judgement.verdict == "breaks a limit"
    assert step.judgement.why == "kept at first; a confirming run broke the limit on P99"
    assert outcome.recommended == START
    assert [run.settings for run in outcome.confirmed] == [TWO, TWO, START, START]


def test_the_search_goes_on_when_a_recommendation_was_not_confirmed():
    class Waits(Listed):
        def propose(self, history):
            waiting = history.steps and history.steps[0].kept
            return None if waiting else super().propose(history)

    system = Later(rate=by_workers(w1=100, w2=180, w3=150), noise=0.001)
    goal = Goal(p99=80)
    outcome = Tuning(system=system, search=Waits(TWO, THREE), goal=goal, start=START).run()
    assert [step.judgement.verdict for step in outcome.history.steps] == ["breaks a limit", "kept"]
    assert outcome.history.steps[1].baseline == START
    assert outcome.recommended == THREE


class Both(Listed):
    """Two and three workers, and three again where the search may."""

    def propose(self, history):
        open_ones = [settings for settings in self.candidates if settings not in history.tried()]
        return Listed(*[None] * len(history.steps), *open_ones).propose(history)


def test_what_was_only_no_better_than_a_refuted_recommendation_is_tried_again():
    system = Later(rate=by_workers(w1=100, w2=180, w3=150), noise=0.001)
    outcome = Tuning(system=system, search=Both(TWO, THREE), goal=Goal(p99=80), start=START).run()
    steps = [(step.baseline, step.hypothesis.settings, step.judgement.verdict) for step in outcome.history.steps]
    assert steps == [(START, TWO, "breaks a limit"), (TWO, THREE, "no gain"), (START, THREE, "kept")]
    assert outcome.recommended == THREE


def test_what_comes_just_within_a_limit_that_was_broken_is_not_recommended():
    system = MadeUp(rate=by_workers(w1=100, w2=100), p99=by_workers(w1=200, w2=78.5), noise=0.02, seed=1)
    outcome = tuned(system, TWO, goal=Goal(p99=80))
    [step] = outcome.history.steps
    assert step.judgement.verdict == "breaks a limit"
    assert step.judgement.why == "kept at first; P99 78.1 ms is too close to the limit of 80 ms to be certain"
    assert outcome.recommended is None


def test_what_there_was_is_left_when_no_run_is_left_to_confirm_anything_else():
    system = Later(rate=by_workers(w1=100, w2=180, w3=300), noise=0.001)
    system.worse = (TWO, THREE)
    outcome = tuned(system, TWO, THREE, goal=Goal(p99=80), budget=11)
    assert [run.settings for run in outcome.confirmed] == [THREE, THREE, TWO, TWO]
    assert len(system.log) == 10
    assert outcome.recommended == START


def test_what_no_run_was_left_to_confirm_is_not_told_as_noise():
    four = START.with_value("workers", 4)
    system = Later(rate=by_workers(w1=100, w2=180, w3=300, w4=500), noise=0.001)
    system.worse = (THREE, four)
    outcome = tuned(system, TWO, THREE, four, goal=Goal(p99=80), budget=12)
    verdicts = [step.judgement.verdict for step in outcome.history.steps]
    assert verdicts == ["not confirmed", "breaks a limit", "breaks a limit"]
    assert outcome.recommended == START
    assert conclusion(outcome) == "no runs left"
    assert any("a larger --budget to continue" in note for note in advice(outcome, Goal(p99=80), 10))


def test_a_step_that_is_taken_back_is_told_again_under_its_own_number(tmp_path):
    system, log = Later(rate=by_workers(w1=100, w2=180, w3=300), noise=0.001), Log(tmp_path / "log.txt")
    system.worse = (TWO, THREE)
    Tuning(system=system, search=Listed(TWO, THREE), goal=Goal(p99=80), start=START, listeners=[log]).run()
    log.close()
    told = re.findall(r"^Step (\d)|verdict +(.*?):", (tmp_path / "log.txt").read_text(encoding="utf-8"), re.MULTILINE)
    steps = [number or verdict for number, verdict in told]
    assert steps == ["1", "kept", "2", "kept", "2", "breaks a limit", "1", "breaks a limit"]


def test_a_setting_that_cannot_be_had_is_a_step_that_failed():
    system = MadeUp(rate=by_workers(w1=100, w2=180, w3=300), noise=0.01, refused=(TWO,))
    outcome = tuned(system, TWO, THREE)
    assert [step.judgement.verdict for step in outcome.history.steps] == ["failed", "kept"]
    assert "the worker cannot load" in outcome.history.steps[0].judgement.why


def test_a_server_that_ended_ends_the_tuning():
    class Ends(MadeUp):
        def measure(self, settings):
            if len(self.log) == 5:
                raise ServerError("gone")
            return super().measure(settings)

    with pytest.raises(ServerError, match="gone"):
        tuned(Ends(noise=0.05), TWO)


def test_the_budget_holds_with_the_confirming_runs_in_it():
    system = MadeUp(noise=0.05)
    candidates = [ModelSettings(1, size, delay) for size in (1, 2, 4, 16) for delay in (1, 2, 3, 4)]
    outcome = tuned(system, *candidates, budget=20)
    assert len(system.log) <= 20
    assert outcome.ended == "no runs left"


def test_the_same_measurements_lead_to_the_same_steps():
    outcomes = [
        tuned(MadeUp(rate=by_workers(w1=100, w2=130, w3=140), noise=0.05, seed=5), TWO, THREE) for _ in range(2)
    ]
    assert outcomes[0].history.steps == outcomes[1].history.steps
