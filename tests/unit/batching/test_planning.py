"""Planning, against brute force over all ways to cut."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsbatch.batching.cost import PassCost
from tsbatch.batching.planning import Bounds, plan, plan_equal, plan_packed

LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=10)
BOUNDS = st.builds(Bounds, features=st.integers(1, 10), cost=st.none() | st.integers(1, 300))


def cost_of(groups, lengths, fixed):
    return sum(fixed + len(group) * max(max(1, lengths[place]) for place in group) for group in groups)


def allowed(group, lengths, bounds):
    longest = max(max(1, lengths[place]) for place in group)
    fits = len(group) <= bounds.features and (bounds.cost is None or longest * len(group) <= bounds.cost)
    return len(group) == 1 or fits


def compositions(order):
    """All ways to cut a sequence into consecutive groups."""
    for bits in range(2 ** (len(order) - 1)):
        cuts = [0, *(place + 1 for place in range(len(order) - 1) if bits >> place & 1), len(order)]
        yield [order[start:stop] for start, stop in pairwise(cuts)]


def set_partitions(places):
    """All ways to cut a set into groups, in any order."""
    if not places:
        yield []
        return
    first, rest = places[0], places[1:]
    for smaller in set_partitions(rest):
        for place, group in enumerate(smaller):
            yield [*smaller[:place], [first, *group], *smaller[place + 1 :]]
        yield [[first], *smaller]


@given(lengths=LENGTHS, bounds=BOUNDS, fixed=st.sampled_from([0.0, 0.5, 16.0, 100.0]), bucketed=st.booleans())
def test_every_feature_is_planned_once_and_within_the_bounds(lengths, bounds, fixed, bucketed):
    groups = plan(lengths, len(lengths), bounds=bounds, bucketed=bucketed, cost=PassCost(fixed))
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    assert all(allowed(group, lengths, bounds) for group in groups)


@given(lengths=LENGTHS, bounds=BOUNDS, fixed=st.sampled_from([0.0, 0.5, 16.0, 100.0]))
def test_no_ordered_cut_is_cheaper(lengths, bounds, fixed):
    groups = plan(lengths, len(lengths), bounds=bounds, bucketed=True, cost=PassCost(fixed))
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    best = min(
        cost_of(cut, lengths, fixed)
        for cut in compositions(order)
        if all(allowed(group, lengths, bounds) for group in cut)
    )
    assert cost_of(groups, lengths, fixed) == pytest.approx(best)


@given(lengths=st.lists(st.integers(0, 60), min_size=1, max_size=7), bounds=BOUNDS, fixed=st.sampled_from([0.0, 16.0]))
def test_no_cut_at_all_is_cheaper_ordered_or_not(lengths, bounds, fixed):
    groups = plan(lengths, len(lengths), bounds=bounds, bucketed=True, cost=PassCost(fixed))
    best = min(
        cost_of(cut, lengths, fixed)
        for cut in set_partitions(list(range(len(lengths))))
        if all(allowed(group, lengths, bounds) for group in cut)
    )
    assert cost_of(groups, lengths, fixed) == pytest.approx(best)


@given(lengths=LENGTHS, bounds=BOUNDS)
def test_without_buckets_only_the_bounds_cut(lengths, bounds):
    groups = plan(lengths, len(lengths), bounds=bounds, bucketed=False, cost=PassCost())
    for left, right in pairwise(groups):
        assert not allowed([*left, right[0]], lengths, bounds), "this cut was not needed"


def test_without_buckets_and_bounds_it_is_one_pass():
    assert len(plan([1, 900, 3], 3, bounds=Bounds(256), bucketed=False, cost=PassCost(0.0))) == 1


@pytest.mark.parametrize("bounds, sizes", [(Bounds(4), [4, 4, 2]), (Bounds(4, 3), [3, 3, 3, 1]), (Bounds(99), [10])])
def test_features_without_lengths_are_cut_in_order(bounds, sizes):
    groups = plan(None, 10, bounds=bounds, bucketed=True, cost=PassCost())
    assert [len(group) for group in groups] == sizes
    assert [place for group in groups for place in group] == list(range(10))


@pytest.mark.parametrize("bucketed", [True, False])
def test_max_tokens_bounds_the_padded_length(bucketed):
    groups = plan([10] * 9, 9, bounds=Bounds(256, 40), bucketed=bucketed, cost=PassCost(1e9))
    assert sorted(map(len, groups)) == [1, 4, 4]


@pytest.mark.parametrize("bucketed", [True, False])
def test_a_feature_over_the_bound_goes_alone(bucketed):
    groups = plan([5, 500, 5], 3, bounds=Bounds(256, 40), bucketed=bucketed, cost=PassCost(1e9))
    assert sorted(groups) == [[0, 2], [1]]


def test_equal_lengths_keep_their_order():
    assert plan([7] * 5, 5, bounds=Bounds(256), bucketed=True, cost=PassCost()) == [[0, 1, 2, 3, 4]]


def test_a_long_one_is_parted_from_many_short_ones():
    groups = plan([4, 4, 400, 4], 4, bounds=Bounds(256), bucketed=True, cost=PassCost(16.0))
    assert groups == [[2], [0, 1, 3]]


def test_a_dear_pass_keeps_them_together():
    assert len(plan([4, 4, 400, 4], 4, bounds=Bounds(256), bucketed=True, cost=PassCost(1e6))) == 1


def test_nothing_to_plan():
    assert plan([], 0, bounds=Bounds(1), bucketed=True, cost=PassCost()) == []


def test_the_order_of_the_features_does_not_change_the_cost():
    costs = {
        cost_of(plan(order, 5, bounds=Bounds(3, 90), bucketed=True, cost=PassCost(8.0)), order, 8.0)
        for order in permutations([3, 9, 9, 27, 81])
    }
    assert len(costs) == 1


# ---- packed ---------------------------------------------------------------------------------------------------


def fits_packed(group, lengths, bounds):
    total = sum(lengths[place] for place in group)
    return len(group) == 1 or (len(group) <= bounds.features and (bounds.cost is None or total <= bounds.cost))


@given(lengths=st.lists(st.integers(0, 60), max_size=30), bounds=BOUNDS)
def test_packed_every_feature_is_planned_once_and_within_the_bounds(lengths, bounds):
    groups = plan_packed(lengths, bounds=bounds)
    assert sorted(place for group in groups for place in group) == list(range(len(lengths)))
    assert all(fits_packed(group, lengths, bounds) for group in groups)


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=30), bounds=BOUNDS)
def test_packed_no_two_passes_could_have_been_one(lengths, bounds):
    groups = plan_packed(lengths, bounds=bounds)
    for place, left in enumerate(groups):
        for right in groups[place + 1 :]:
            assert not fits_packed([*left, *right], lengths, bounds)


def test_packed_without_bounds_is_one_pass():
    assert len(plan_packed([1, 900, 3] * 50, bounds=Bounds(256))) == 1


@given(lengths=LENGTHS, bounds=BOUNDS)
def test_equal_lengths_alone_share_a_pass(lengths, bounds):
    groups = plan_equal(lengths, bounds=bounds)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert len({lengths[index] for index in group}) == 1
        assert len(group) <= bounds.features
        assert len(group) == 1 or bounds.cost is None or len(group) * lengths[group[0]] <= bounds.cost


def test_all_of_one_length_share_one_pass():
    assert sorted(map(sorted, plan_equal([3, 5, 3, 5, 3], bounds=Bounds(256)))) == [[0, 2, 4], [1, 3]]
