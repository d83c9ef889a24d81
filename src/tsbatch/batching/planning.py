"""Partition the features of a batch into micro-batches.

With padding, a micro-batch costs the length of its longest feature times its size. With the features sorted by length,
the best partition is a shortest path, found by dynamic programming over the sorted lengths (TurboTransformers,
Fang et al., PPoPP 2021, algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tsbatch.batching.cost import PassCost


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one micro-batch: features, and padded length units (None: no limit)."""

    features: int
    cost: int | None = None


def plan(
    lengths: Sequence[int] | None, count: int, *, bounds: Bounds, bucketed: bool, cost: PassCost
) -> list[list[int]]:
    """Return the micro-batches, as indices of features.

    Args:
        lengths: one length per feature, or None if the task has none: then each feature costs 1.
        count: number of features.
        bounds: limits of one micro-batch; a feature that exceeds them alone still gets its own pass.
        bucketed: partition for the least total cost; otherwise only as the bounds require.
        cost: the cost of a pass: ``fixed + n * longest``.
    """
    if count == 0:
        return []
    if lengths is None:
        size = min(bounds.features, bounds.cost or bounds.features)
        return [list(range(start, min(start + size, count))) for start in range(0, count, size)]
    order = sorted(range(count), key=lengths.__getitem__, reverse=True)
    ordered = [max(1, lengths[index]) for index in order]
    cuts = _cheapest_cuts(ordered, bounds, cost) if bucketed else _forced_cuts(ordered, bounds)
    return [order[start:stop] for start, stop in pairwise(cuts)]


def plan_packed(lengths: Sequence[int], *, bounds: Bounds) -> list[list[int]]:
    """Return the micro-batches of a packed run: without padding, only the bounds matter, on the sum of lengths.

    The longest feature first, each into the first micro-batch with room (first fit decreasing).
    """
    groups: list[list[int]] = []
    sums: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        length = lengths[index]
        for number, group in enumerate(groups):
            if len(group) < bounds.features and (bounds.cost is None or sums[number] + length <= bounds.cost):
                group.append(index)
                sums[number] += length
                break
        else:
            groups.append([index])
            sums.append(length)
    return groups


def plan_equal(lengths: Sequence[int], *, bounds: Bounds) -> list[list[int]]:
    """Return micro-batches of features of equal length, the longest first, for models whose answers depend on padding.

    Args:
        lengths: one length per feature.
        bounds: limits of one micro-batch.
    """
    groups: dict[int, list[int]] = {}
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        groups.setdefault(lengths[index], []).append(index)
    parts: list[list[int]] = []
    for length, group in groups.items():
        size = max(1, bounds.features if bounds.cost is None else min(bounds.features, bounds.cost // max(1, length)))
        parts += [group[start : start + size] for start in range(0, len(group), size)]
    return parts


def _fits(longest: int, size: int, bounds: Bounds) -> bool:
    return size == 1 or (size <= bounds.features and (bounds.cost is None or longest * size <= bounds.cost))


def _forced_cuts(ordered: Sequence[int], bounds: Bounds) -> list[int]:
    cuts = [0]
    for stop in range(1, len(ordered) + 1):
        if not _fits(ordered[cuts[-1]], stop - cuts[-1], bounds):
            cuts.append(stop - 1)
    return [*cuts, len(ordered)]


def _cheapest_cuts(ordered: Sequence[int], bounds: Bounds, cost: PassCost) -> list[int]:
    # best[i]: least cost of the first i features. The longest of features start..stop is the one at start,
    # since they are sorted from long to short.
    count = len(ordered)
    longest = np.asarray(ordered, dtype=np.float64)
    best = np.zeros(count + 1)
    origin = np.zeros(count + 1, dtype=np.int64)
    for stop in range(1, count + 1):
        first = max(0, stop - bounds.features)
        sizes = stop - np.arange(first, stop)
        padded = longest[first:stop] * sizes
        total = best[first:stop] + cost.fixed + padded
        if bounds.cost is not None:
            total = np.where((padded <= bounds.cost) | (sizes == 1), total, np.inf)
        choice = int(np.argmin(total))
        best[stop] = total[choice]
        origin[stop] = first + choice
    cuts = [count]
    while cuts[-1]:
        cuts.append(int(origin[cuts[-1]]))
    return cuts[::-1]
