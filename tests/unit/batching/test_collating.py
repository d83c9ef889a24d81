"""The default collate: one shape in, n rows out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsbatch.batching.collating import collate
from tsbatch.errors import ContractBroken


@pytest.mark.parametrize(
    "features, expected",
    [
        ([torch.ones(2), torch.zeros(2)], torch.tensor([[1.0, 1.0], [0.0, 0.0]])),
        ([np.array([1, 2]), np.array([3, 4])], torch.tensor([[1, 2], [3, 4]])),
        ([1, 2, 3], torch.tensor([1, 2, 3])),
        ([1.5], torch.tensor([1.5])),
        ([True, False], torch.tensor([True, False])),
        ([np.float32(2.0), np.float32(3.0)], torch.tensor([2.0, 3.0])),
    ],
)
def test_features_of_one_shape(features, expected):
    got = collate(features)
    assert torch.equal(got, expected)
    assert got.dtype == expected.dtype


def test_mappings_and_tuples_entry_by_entry():
    got = collate([{"a": torch.ones(2), "b": (1, 2.0)}, {"a": torch.zeros(2), "b": (3, 4.0)}])
    assert got["a"].tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert [column.tolist() for column in got["b"]] == [[1, 3], [2.0, 4.0]]


@pytest.mark.parametrize("kind", [torch.zeros, np.zeros])
def test_different_shapes_say_what_to_do(kind):
    with pytest.raises(ContractBroken, match="different shapes") as caught:
        collate([kind(2), kind(3)])
    assert "override collate" in caught.value.expected


@pytest.mark.parametrize("feature", ["text", None, [1, 2], object()])
def test_what_cannot_be_stacked(feature):
    with pytest.raises(ContractBroken, match=type(feature).__name__) as caught:
        collate([feature])
    assert caught.value.stage == "collate"
