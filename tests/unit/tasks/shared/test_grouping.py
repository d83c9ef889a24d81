from __future__ import annotations

import pytest
import torch

from tsbatch.errors import ContractBroken
from tsbatch.tasks.shared.grouping import Groups, group_equal, run_groups


def test_equal_shapes_are_together_in_the_order_they_are_met():
    assert group_equal([(2,), (3,), (2,), (1,), (3,)]) == [[0, 2], [1, 4], [3]]


def test_outputs_are_in_the_order_of_the_features():
    groups = Groups([[0, 2], [1]], [torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0, 2.0]])], ["a", "b"])
    seen = []
    outputs = run_groups(groups, lambda batch, wish: seen.append(wish) or batch * 10)
    assert [output.tolist() for output in outputs] == [[10.0], [20.0, 20.0], [30.0]]
    assert seen == ["a", "b"]


def test_one_group_is_left_in_one_piece():
    groups = Groups([[0, 1]], [torch.ones(2, 1)], ["a"])
    assert run_groups(groups, lambda batch, wish: (batch, wish)) == (groups.batches[0], "a")


def test_a_wrong_number_of_rows_is_told():
    groups = Groups([[0, 1], [2]], [torch.zeros(2, 1), torch.zeros(1, 2)], [None, None])
    with pytest.raises(ContractBroken, match="1 outputs for 2 inputs"):
        run_groups(groups, lambda batch, wish: batch[:1])
