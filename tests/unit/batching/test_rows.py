"""What a stage may return, and what it is told when it returned something else."""

from __future__ import annotations

from collections import OrderedDict, UserDict

import numpy as np
import pytest
import torch

from tsbatch.batching.rows import split, stack, to_cpu
from tsbatch.errors import ContractBroken


def rows(returned, count):
    return split(returned, count, stage="inference", what="outputs")


def plain(value):
    """Tensors and arrays as lists, so that == compares them."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(entry) for entry in value)
    return value


NUMBERS = [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize(
    "returned, expected",
    [
        (["a", "b", "c"], ["a", "b", "c"]),
        ([None, None, None], [None, None, None]),
        ([[1], [2, 3], []], [[1], [2, 3], []]),
        (torch.tensor(NUMBERS), NUMBERS),
        (np.array(NUMBERS), NUMBERS),
        (torch.arange(3), [0, 1, 2]),
        (np.arange(3), [0, 1, 2]),
        (
            {"a": torch.tensor(NUMBERS), "b": [7, 8, 9]},
            [{"a": [1, 2], "b": 7}, {"a": [3, 4], "b": 8}, {"a": [5, 6], "b": 9}],
        ),
        (OrderedDict(a=np.arange(3), b=None), [{"a": 0}, {"a": 1}, {"a": 2}]),
        (UserDict(a=np.arange(3)), [{"a": 0}, {"a": 1}, {"a": 2}]),
        ((torch.arange(3), np.array(NUMBERS)), [(0, [1, 2]), (1, [3, 4]), (2, [5, 6])]),
        (("a", "b", "c"), ["a", "b", "c"]),
        ((1, 2, 3), [1, 2, 3]),
    ],
)
def test_shapes_that_are_taken(returned, expected):
    assert [plain(row) for row in rows(returned, 3)] == expected


def test_the_output_of_a_transformers_model():
    from transformers.modeling_outputs import BaseModelOutput

    output = BaseModelOutput(last_hidden_state=torch.zeros(3, 5, 2), hidden_states=None)
    assert [tuple(row["last_hidden_state"].shape) for row in rows(output, 3)] == [(5, 2)] * 3


@pytest.mark.parametrize(
    "returned, got",
    [
        ([1, 2], 2),
        ([], 0),
        ([1, 2, 3, 4], 4),
        (torch.zeros(4, 2), 4),
        (np.zeros((1, 2)), 1),
        ({"a": torch.zeros(2)}, 2),
        ({"a": torch.zeros(3), "b": torch.zeros(5)}, 5),
        ((1, 2), 2),
        ((), 0),
        ((torch.zeros(4), torch.zeros(4)), 4),
    ],
)
def test_a_wrong_number_names_both_numbers_and_the_right_shape(returned, got):
    with pytest.raises(ContractBroken) as caught:
        rows(returned, 3)
    assert str(got) in caught.value.message
    assert "3" in caught.value.message
    assert "inference" in caught.value.message
    assert "a list of 3" in caught.value.expected
    assert caught.value.stage == "inference"


@pytest.mark.parametrize(
    "returned, name",
    [
        (None, "None"),
        (1.5, "float"),
        ("abc", "str"),
        (b"abc", "bytes"),
        ({1, 2, 3}, "set"),
        ((row for row in "abc"), "generator"),
        (torch.tensor(1.0), "Tensor"),
        (np.float32(1.0), "float32"),
        (np.array(1.0), "ndarray"),
        ({}, "dict"),
        ({"a": 1}, "dict"),
        ({"a": None}, "dict"),
        (range(3), "range"),
    ],
)
def test_another_type_is_named(returned, name):
    with pytest.raises(ContractBroken) as caught:
        rows(returned, 3)
    assert name in caught.value.message
    assert "list of 3 outputs" in caught.value.expected


def test_a_single_dict_for_one_input_is_its_columns():
    assert rows({"a": [7]}, 1) == [{"a": 7}]


def test_stacking_gives_back_what_was_split():
    for whole in (torch.arange(6).reshape(3, 2), np.arange(6).reshape(3, 2)):
        again = stack(rows(whole, 3), stage="postprocess")
        assert type(again) is type(whole)
        assert plain(again) == plain(whole)


def test_other_rows_stay_a_list():
    assert stack([{"a": 1}, None], stage="postprocess") == [{"a": 1}, None]
    assert stack([], stage="postprocess") == []


@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
def test_rows_of_different_shapes_are_refused_by_name(make):
    with pytest.raises(ContractBroken, match=r"postprocess received rows of different shapes.*\(2,\), \(3,\)"):
        stack([make(2), make(3)], stage="postprocess")


def test_to_cpu_goes_through_everything():
    meta = torch.zeros(2)
    value = {"a": (meta, [meta, 1]), "b": None}
    assert plain(to_cpu(value)) == {"a": ([0.0, 0.0], [[0.0, 0.0], 1]), "b": None}
    assert to_cpu(meta) is meta
