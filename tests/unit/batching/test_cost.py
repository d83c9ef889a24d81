"""The cost of a pass, learnt from passes whose true cost is known."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsbatch.batching.cost import PassCost


def learn(fixed, per_unit, lengths, *, noise=0.0, cost=None):
    cost = cost or PassCost()
    generator = random.Random(0)
    for length in lengths:
        cost.observe(length, (fixed + length) * per_unit * (1 + noise * generator.uniform(-1, 1)))
    return cost


VARIED = [10, 400, 50, 2000, 120, 900, 30, 700] * 8


@pytest.mark.parametrize("fixed", [5, 16, 300, 2000])
def test_the_fixed_part_is_found(fixed):
    assert learn(fixed, 1e-5, VARIED).fixed == pytest.approx(fixed, rel=1e-6)


def test_noise_moves_it_a_little():
    assert learn(300, 1e-5, VARIED * 4, noise=0.05).fixed == pytest.approx(300, rel=0.3)


def test_a_machine_that_changed_is_followed():
    cost = learn(20, 1e-5, VARIED * 4)
    learn(500, 1e-5, VARIED * 6, cost=cost)
    assert cost.fixed == pytest.approx(500, rel=0.15)


def test_passes_of_one_size_say_nothing():
    assert learn(300, 1e-5, [128] * 100).fixed == 16.0


def test_few_passes_say_nothing():
    assert learn(300, 1e-5, [10, 400, 2000]).fixed == 16.0


def test_a_longer_pass_that_was_faster_is_not_believed():
    cost = PassCost()
    for length in VARIED:
        cost.observe(length, 1 / length)
    assert cost.fixed == 16.0


@given(st.lists(st.tuples(st.integers(-5, 10**9), st.floats()), max_size=60))
def test_it_stays_a_number_within_its_bounds(passes):
    cost = PassCost()
    for length, seconds in passes:
        cost.observe(length, seconds)
    assert math.isfinite(cost.fixed)
    assert 1.0 <= cost.fixed <= PassCost.MAX_FIXED
