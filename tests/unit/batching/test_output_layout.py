"""Which part of a model's output belongs to which item: found by batches of one, two and three, never by luck."""

from __future__ import annotations

import pytest
import torch

from tsbatch.batching.output_layout import Axis, Entries, Outputs, UnclearLayout, find_layout

ITEMS = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 10.0]])


def found(model):
    return find_layout(lambda indices: model(ITEMS[list(indices)]))


@pytest.mark.parametrize(
    "model, layout",
    [
        (lambda x: x * 2, Axis(0)),
        (lambda x: x.T, Axis(1)),
        (lambda x: x[None].expand(2, -1, -1), Axis(1)),
        (lambda x: x.sum(1), Axis(0)),
        (lambda x: list(x), Entries()),
        (lambda x: tuple(x[:, :2]), Entries()),
        (lambda x: [{"boxes": row[:2]} for row in x], Entries()),
        (lambda x: (x, x.T), Outputs({0: Axis(0), 1: Axis(1)}, named=False)),
        (lambda x: [x, x + 1], Outputs({0: Axis(0), 1: Axis(0)}, named=False)),
        (lambda x: {"a": x, "n": None}, Outputs({"a": Axis(0)}, named=True)),
        (lambda x: (x, (x.T, list(x))), Outputs({0: Axis(0), 1: Outputs({0: Axis(1), 1: Entries()}, False)}, False)),
    ],
)
def test_what_a_model_returns(model, layout):
    assert found(model) == (layout, True)


def test_two_outputs_for_two_items_are_not_two_items():
    layout, _ = found(lambda x: [x, -x])
    both = ITEMS[:2]
    first, second = layout.split([both, -both], 2)
    assert torch.equal(torch.stack(first), torch.stack([both[0], -both[0]]))
    assert torch.equal(torch.stack(second), torch.stack([both[1], -both[1]]))


def test_two_results_for_each_of_two_items_stay_with_their_item():
    layout, _ = found(lambda x: [row[:2] for row in x])
    assert [entry.tolist() for entry in layout.split([ITEMS[0, :2], ITEMS[1, :2]], 2)] == [[1.0, 2.0], [4.0, 5.0]]


def test_entries_may_have_any_number_of_results():
    layout, same = found(lambda x: [row[: 1 + index] for index, row in enumerate(x)])
    assert layout == Entries()
    assert not same  # the second item has one result alone, and two here


def test_a_recurrent_state_has_its_items_second():
    torch.manual_seed(0)
    model = torch.nn.LSTM(3, 4, num_layers=2, batch_first=True)
    with torch.no_grad():
        layout, same = find_layout(lambda indices: model(ITEMS[list(indices)].unsqueeze(1)))
        output, (hidden, cell) = model(ITEMS.unsqueeze(1))
    assert layout == Outputs({0: Axis(0), 1: Outputs({0: Axis(1), 1: Axis(1)}, False)}, False)
    assert same
    _, last = layout.split((output, (hidden, cell)), 3)[2]
    assert torch.equal(last[0], hidden[:, 2])


@pytest.mark.parametrize(
    "model",
    [
        lambda x: x.mean(0),
        lambda x: x.sum(),
        lambda x: x @ x.T,
        lambda x: x.reshape(-1),
        lambda x: (x, x.sum()),
        lambda x: [x[0]] * (2 * len(x)),
        lambda x: 5,
        lambda x: {},
    ],
)
def test_what_stays_unclear_is_refused(model):
    with pytest.raises(UnclearLayout, match="for 1, 2 and 3 items"):
        found(model)


def test_results_that_depend_on_the_neighbours_are_noticed():
    assert found(lambda x: x - x.mean(0)) == (Axis(0), False)


@pytest.mark.parametrize("output", [ITEMS[:2], [ITEMS], None])
@pytest.mark.parametrize("layout", [Axis(0), Entries(), Outputs({0: Axis(0), 1: Axis(0)}, False)])
def test_another_output_than_before_is_an_error(layout, output):
    with pytest.raises(UnclearLayout, match="for 3 items"):
        layout.split(output, 3)
