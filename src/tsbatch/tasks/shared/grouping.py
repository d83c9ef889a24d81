"""Group inputs by an equal key: those of one shape, for example, share a forward pass without padding."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tsbatch.batching.rows import split

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A micro-batch, divided into groups that can be stacked.

    Attributes:
        indices: for each group the positions of its features in the micro-batch.
        batches: for each group its tensors, with one row per feature.
        options: for each group what its forward pass needs besides the tensors.
    """

    indices: Sequence[Sequence[int]]
    batches: Sequence[Any]
    options: Sequence[Any]


def group_equal(keys: Sequence[Hashable]) -> list[list[int]]:
    """The positions of equal keys, in the order in which each key first occurs."""
    groups: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def map_groups(entries: Sequence[T], keys: Sequence[Hashable], call: Callable[[list[T]], Sequence[R]]) -> list[R]:
    """Call a function once for the entries of each key.

    Args:
        entries: what the function is called with.
        keys: the key of each entry.
        call: returns one result for each entry that it is given.

    Returns:
        The results in the order of the entries.
    """
    results: dict[int, R] = {}
    for indices in group_equal(keys):
        results.update(zip(indices, call([entries[index] for index in indices]), strict=True))
    return [results[index] for index in range(len(entries))]


def collate_groups(
    features: Sequence[Any],
    keys: Sequence[Hashable],
    collate: Callable[[list[Any]], Any],
    options: Sequence[Any] | None = None,
) -> Groups:
    """Collate the features of each key.

    Args:
        features: the features of a micro-batch.
        keys: the key of each feature.
        collate: makes the tensors of a group from its features.
        options: for each feature what its forward pass needs besides; equal for equal keys.
    """
    indices = group_equal(keys)
    batches = [collate([features[index] for index in group]) for group in indices]
    return Groups(indices, batches, [None if options is None else options[group[0]] for group in indices])


def run_groups(groups: Groups, run: Callable[[Any, Any], Any]) -> Any:
    """Run each group, and return one output per feature in the order of the features.

    Args:
        groups: the micro-batch.
        run: called with the tensors and the options of each group; returns a list or tensors with one row per feature.

    Returns:
        A list. Of one group in order what ``run`` returned, which the loop then splits in one go.

    Raises:
        ContractBroken: ``run`` returned another number of rows.
    """
    count = sum(map(len, groups.indices))
    if len(groups.batches) == 1 and list(groups.indices[0]) == list(range(count)):
        return run(groups.batches[0], groups.options[0])
    outputs: list[Any] = [None] * count
    for indices, batch, options in zip(groups.indices, groups.batches, groups.options, strict=True):
        rows = split(run(batch, options), len(indices), stage="inference", what="outputs")
        for index, row in zip(indices, rows, strict=True):
            outputs[index] = row
    return outputs
