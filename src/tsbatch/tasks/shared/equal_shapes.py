"""Inputs of one shape share a forward pass: for models that cannot be padded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from tsbatch.batching.rows import split


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A micro-batch, cut into what can be stacked.

    Attributes:
        places: for each group the places of its features in the micro-batch.
        batches: for each group its tensors, one row a feature.
        wishes: for each group what it asks of the model, beside its tensors.
    """

    places: Sequence[Sequence[int]]
    batches: Sequence[Any]
    wishes: Sequence[Any]


def same_shape(shapes: Sequence[Hashable]) -> list[list[int]]:
    """The places of equal shapes, in the order in which each shape is first met."""
    groups: dict[Hashable, list[int]] = {}
    for place, shape in enumerate(shapes):
        groups.setdefault(shape, []).append(place)
    return list(groups.values())


def run_groups(groups: Groups, run: Callable[[Any, Any], Any]) -> Any:
    """One output a feature, in the order of the features.

    Args:
        groups: the micro-batch.
        run: called with the tensors and the wish of each group; returns a list or tensors with one row a feature.

    Returns:
        Of several groups a list; of one what ``run`` returned, which the loop then takes apart in one go.

    Raises:
        ContractBroken: another number of rows.
    """
    if len(groups.batches) == 1:
        return run(groups.batches[0], groups.wishes[0])
    outputs: list[Any] = [None] * sum(len(places) for places in groups.places)
    for places, batch, wish in zip(groups.places, groups.batches, groups.wishes, strict=True):
        rows = split(run(batch, wish), len(places), stage="inference", what="outputs")
        for place, row in zip(places, rows, strict=True):
            outputs[place] = row
    return outputs
