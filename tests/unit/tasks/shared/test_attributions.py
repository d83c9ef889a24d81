"""Integrated gradients on functions whose integral is known."""

from __future__ import annotations

import pytest
import torch

from tsbatch.errors import Unprocessable
from tsbatch.protocol.request import Item, Request
from tsbatch.tasks.shared.attributions import (
    ExplainingParameters,
    check_steps,
    find_class,
    integrated_gradients,
    share_passes,
)

INPUTS = torch.tensor([[1.0, 2.0], [-1.0, 0.5], [3.0, 0.0]])
BLANK = torch.tensor([[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]])


def logits(inputs, scale):
    """Three classes: the sum, the sum of squares, and a product; times each row's scale."""
    first, second = inputs.unbind(1)
    return scale[:, None] * torch.stack([first + second, first**2 + second**2, first * second], dim=1)


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_each_input_has_its_class_its_baseline_and_its_context(rows):
    scale = torch.tensor([1.0, 2.0, 3.0])
    told = integrated_gradients(logits, INPUTS, BLANK, [0, 1, 2], context=(scale,), n_steps=10, rows=rows)
    # By hand: x - b; x² - b²; and of the product from b to x, (x1 - b1)(b2 + x2) / 2 and the other way round.
    expected = [[1, 2], [2 * (1 - 0.25), 0], [3 * (2 * 1 / 2), 3 * (-1 * 4 / 2)]]
    for row, wanted in zip(told.attributions.tolist(), expected, strict=True):
        assert row == pytest.approx(wanted, abs=1e-5)
    assert told.values.tolist() == pytest.approx([3, 2 * 1.25, 0])
    assert told.baselines.tolist() == pytest.approx([0, 1, 3])
    assert told.deltas.tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert not told.attributions.requires_grad


def test_too_few_steps_show_in_the_delta():
    def quartic(inputs):
        return (inputs**4).sum(1, keepdim=True)

    coarse = integrated_gradients(quartic, INPUTS, BLANK, [0, 0, 0], n_steps=1)
    fine = integrated_gradients(quartic, INPUTS, BLANK, [0, 0, 0], n_steps=20)
    assert coarse.deltas.abs().min() > 0.01
    assert fine.deltas.abs().max() < 1e-4
    total = coarse.attributions.sum(1) - (coarse.values - coarse.baselines)
    assert coarse.deltas.tolist() == pytest.approx(total.tolist())


def test_inputs_of_any_shape():
    images = torch.rand(2, 3, 4, 5)
    told = integrated_gradients(lambda pixels: pixels.sum((2, 3)), images, torch.zeros_like(images), [0, 2])
    assert torch.allclose(told.attributions[0, 0], images[0, 0], atol=1e-6)
    assert told.attributions[0, 1:].abs().max() == 0
    assert torch.allclose(told.attributions[1, 2], images[1, 2], atol=1e-6)


def test_no_more_inputs_than_rows_and_one_number_of_steps_share_a_pass():
    assert list(share_passes([50, 20, 50, 50, 20], rows=2)) == [[0, 2], [3], [1, 4]]
    assert list(share_passes([])) == []


def test_a_request_has_so_many_steps_for_all_its_items():
    few, many = Request({}), Request({})
    items = [Item(0, ExplainingParameters(n_steps=500), many) for _ in range(7)]
    items += [Item(0, ExplainingParameters(), few) for _ in range(64)]
    errors = check_steps(items)
    assert [error is None for error in errors] == [False] * 7 + [True] * 64
    assert errors[0].message == "the items of the request have 3,500 n_steps together, over the limit of 3,200"


def test_the_class_that_was_asked_for():
    row = torch.tensor([0.1, 0.9, 0.5])
    assert find_class(None, ["a", "b", "c"], row) == 1
    assert find_class("c", ["a", "b", "c"], row) == 2
    error = find_class("d", [f"label{number}" for number in range(30)], row)
    assert isinstance(error, Unprocessable)
    assert "'d'" in error.message
    assert error.expected.endswith("label19 and 10 more")
