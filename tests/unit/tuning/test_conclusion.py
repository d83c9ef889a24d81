from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.tuning.made_up import START, observation, step
from tsbatch.tuning.history import History
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.recommendation import (
    conclusion,
    figures_of_front,
    figures_of_headline,
    figures_of_tables,
    gain,
    kept_path,
)
from tsbatch.tuning.tuner import Outcome

TWO, THREE = START.with_value("workers", 2), START.with_value("workers", 3)


def outcome(*steps, recommended=START, ended="nothing left"):
    start = [observation()] * 4
    return Outcome(History(start=start, steps=list(steps), runs=start), recommended, ended=ended)


def kept(candidate, baseline, before, after):
    pairs = [(observation(baseline, rate=before), observation(candidate, rate=after))] * 2
    return replace(step(candidate, "kept", baseline), pairs=pairs)


@pytest.mark.parametrize(
    "verdicts, ended, told",
    [
        ((), "nothing left", "nothing to gain"),
        (("no gain", "breaks a limit", "on the way"), "nothing left", "nothing to gain"),
        (("no gain", "failed"), "nothing left", "nothing to gain"),
        (("no gain", "cannot tell"), "nothing left", "cannot tell"),
        (("no gain", "cannot tell"), "no runs left", "cannot tell"),
        (("failed", "failed"), "nothing left", "cannot tell"),
        (("no gain",), "no runs left", "no runs left"),
        (("not confirmed",), "nothing left", "no runs left"),
        (("cannot tell", "not confirmed"), "no runs left", "no runs left"),
    ],
)
def test_that_nothing_changes_has_a_reason(verdicts, ended, told):
    assert conclusion(outcome(*(step(TWO, verdict) for verdict in verdicts), ended=ended)) == told


def test_a_step_for_which_no_runs_were_left_is_not_the_noise_s():
    unmeasured = replace(step(TWO, "cannot tell"), pairs=[])
    assert conclusion(outcome(unmeasured, ended="no runs left")) == "no runs left"


def test_what_is_recommended_comes_first():
    assert conclusion(outcome(step(TWO, "cannot tell"), recommended=TWO)) == "changed"
    assert conclusion(outcome(step(TWO, "cannot tell"), recommended=None)) == "nothing to recommend"


def test_the_gain_is_that_of_the_kept_steps_measured_in_turns():
    # The machine became slower in between: first and last runs would say a factor of three.
    first, second = kept(TWO, START, 100, 180), kept(THREE, TWO, 150, 300)
    found = outcome(first, step(START.with_value("maxBatchDelay", 1)), second, recommended=THREE)
    assert kept_path(found) == [first, second]
    assert gain(found, "throughput") == pytest.approx(1.8 * 2)
    assert gain(found, "p99") == pytest.approx(1)


def test_a_gain_is_told_as_far_as_the_recommendation_only():
    first, second = kept(TWO, START, 100, 180), kept(THREE, TWO, 150, 300)
    assert gain(outcome(first, second, recommended=TWO), "throughput") == pytest.approx(1.8)


def test_where_a_step_was_taken_back_the_pairs_say_nothing_of_the_whole():
    taken_back = replace(kept(TWO, START, 100, 180), judgement=step(TWO, "breaks a limit").judgement)
    assert gain(outcome(taken_back, kept(THREE, TWO, 150, 300), recommended=THREE), "throughput") is None


def test_memory_that_nobody_knows_has_no_gain():
    unknown = replace(step(TWO, "kept"), pairs=[(observation(memory=None), observation(TWO, memory=None))])
    assert gain(outcome(unknown, recommended=TWO), "memory") is None


def test_the_objective_is_always_among_what_is_told():
    assert figures_of_headline(Goal()) == ["throughput", "p99"]
    assert figures_of_headline(Goal(objective="memory", open_loop=True)) == ["memory", "p99"]
    assert figures_of_headline(Goal(objective="p99", memory=1e9)) == ["p99", "throughput", "memory"]
    assert figures_of_tables(Goal()) == ["throughput", "p50", "p99"]
    for goal in (Goal(objective="memory"), Goal(memory=1e9)):
        assert figures_of_tables(goal) == ["throughput", "p50", "p99", "memory"]
    assert figures_of_tables(Goal(objective="memory", gpu_memory=0.5))[3:] == ["memory", "gpu_memory"]
    assert figures_of_headline(Goal(gpu_memory=0.5)) == ["throughput", "p99", "gpu_memory"]


@pytest.mark.parametrize(
    "goal, known, unknown",
    [
        (Goal(), "throughput", "throughput"),
        (Goal(objective="p50", open_loop=True), "p50", "p50"),
        (Goal(objective="memory", open_loop=True), "memory", "p50"),
        (Goal(objective="memory"), "memory", "throughput"),
        (Goal(objective="p99"), "throughput", "throughput"),
        (Goal(objective="p99", open_loop=True), "memory", "p50"),
    ],
)
def test_the_front_is_of_what_is_wanted_and_p99(goal, known, unknown):
    """The requests/s of an open loop are the load's own and no merit of a setting."""
    assert figures_of_front(goal, [observation().figures]) == (known, "p99")
    assert figures_of_front(goal, [observation().figures, observation(memory=None).figures]) == (unknown, "p99")
