"""Isolation: exactly the guilty fail, whoever they are, with few calls."""

from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsbatch.batching.isolation import Budget, isolate
from tsbatch.errors import NotTried, ReplyError, StageFailed


class Stage:
    """A stage that fails whenever a guilty entry is in its part, and counts its calls."""

    def __init__(self, guilty, error=ValueError):
        self.guilty, self.error, self.calls = set(guilty), error, []

    def __call__(self, part):
        self.calls.append(list(part))
        if bad := self.guilty & set(part):
            raise self.error(f"guilty: {sorted(bad)}")
        return [entry * 10 for entry in part]


def explain(error):
    return error if isinstance(error, ReplyError) else StageFailed(str(error))


def run(stage, entries, seconds=60.0):
    return isolate(stage, entries, explain=explain, budget=Budget(seconds))


def check(stage, outcomes, count):
    assert len(outcomes) == count
    for entry, outcome in enumerate(outcomes):
        if entry in stage.guilty:
            assert outcome.error.message == f"guilty: [{entry}]", "each guilty one gets its own reason"
            assert outcome.result is None
        else:
            assert outcome.error is None
            assert outcome.result == entry * 10


def most_calls(count, guilty):
    """A full binary search for each guilty one; they share the top of the tree, so this is generous."""
    return 1 + 2 * guilty * math.ceil(math.log2(count)) if count > 1 else 1


@pytest.mark.parametrize("count", range(1, 11))
def test_every_subset_of_guilty_ones(count):
    for bits in range(2**count):
        stage = Stage(entry for entry in range(count) if bits >> entry & 1)
        check(stage, run(stage, list(range(count))), count)
        assert len(stage.calls) <= most_calls(count, len(stage.guilty))


@given(count=st.integers(11, 300), guilty=st.sets(st.integers(0, 10), max_size=4), seed=st.integers(0, 9))
def test_large_batches(count, guilty, seed):
    stage = Stage(random.Random(seed).sample(range(count), len(guilty)))
    check(stage, run(stage, list(range(count))), count)
    assert len(stage.calls) <= most_calls(count, len(stage.guilty))


def test_a_good_batch_is_one_call():
    stage = Stage(())
    run(stage, list(range(64)))
    assert len(stage.calls) == 1


def test_one_guilty_of_64_costs_two_calls_a_halving():
    stage = Stage({63})
    run(stage, list(range(64)))
    assert len(stage.calls) == 1 + 2 * 6


def test_nothing_to_do_is_no_call():
    stage = Stage(())
    assert run(stage, []) == []
    assert stage.calls == []


def test_the_order_of_calls_keeps_the_order_of_entries():
    stage = Stage({2, 5})
    run(stage, list(range(8)))
    good = [part for part in stage.calls if not stage.guilty & set(part)]
    assert [entry for part in good for entry in part] == [0, 1, 3, 4, 6, 7]


class Cancelled(BaseException):
    """Like asyncio's: no Exception, and nobody's wish to stop the process."""


@pytest.mark.parametrize(
    "error", [ValueError, SystemExit, MemoryError, AssertionError, StopIteration, RecursionError, Cancelled]
)
def test_whatever_a_stage_raises_is_the_guilty_ones_own(error):
    stage = Stage({1}, error)
    check(stage, run(stage, [0, 1, 2]), 3)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_a_person_may_still_stop_the_process(error):
    with pytest.raises(error):
        run(Stage({1}, error), [0, 1, 2])


def test_a_reply_error_is_passed_on_as_it_is():
    error = StageFailed("mine")

    def stage(part):
        raise error

    assert run(stage, [0])[0].error is error


def test_a_fault_that_only_shows_in_company_hits_nobody():
    def stage(part):
        if len(part) > 2:
            raise ValueError("too many")
        return [entry * 10 for entry in part]

    assert [outcome.result for outcome in run(stage, [0, 1, 2, 3, 4])] == [0, 10, 20, 30, 40]


@pytest.mark.alone
def test_when_the_time_is_used_up_the_rest_is_given_up():
    seen = []

    def stage(part):
        seen.append(list(part))
        time.sleep(0.03)
        if 7 in part or 0 in part:
            raise ValueError("guilty")
        return part

    started = time.monotonic()
    outcomes = run(stage, list(range(8)), seconds=0.05)
    assert time.monotonic() - started < 0.25
    errors = [outcome.error for outcome in outcomes]
    given_up = [error for error in errors if isinstance(error, NotTried)]
    assert given_up, "the time was used up long before the end"
    assert given_up[0].status == 503
    assert "0.05 s" in given_up[0].message
    assert "isolation_seconds" in given_up[0].expected
    assert len(outcomes) == 8


def test_a_slow_batch_that_works_is_never_given_up():
    def stage(part):
        time.sleep(0.03)
        return part

    assert all(outcome.error is None for outcome in run(stage, [1, 2], seconds=0.001))


@pytest.mark.alone
def test_all_calls_of_a_batch_share_its_time():
    def stage(part):
        time.sleep(0.02)
        raise ValueError("guilty")

    budget = Budget(0.1)
    started = time.monotonic()
    errors = [
        outcome.error
        for _ in range(8)  # micro-batches
        for outcome in isolate(stage, [1, 2, 3, 4], explain=explain, budget=budget)
    ]
    assert time.monotonic() - started < 8 * 0.02 + 0.1 + 0.2, "each first call, and the time to look once"
    assert isinstance(errors[0], StageFailed)
    assert all(isinstance(error, NotTried) for error in errors[-4:])


def test_only_looking_is_charged():
    budget = Budget(0.05)
    isolate(lambda part: time.sleep(0.1) or part, [1, 2], explain=explain, budget=budget)
    assert budget.left == budget.seconds == 0.05
