"""Spans of tokens, against every span tried one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsbatch.tasks import question_answering
from tsbatch.tasks.question_answering import best_spans, position_probabilities


def one_by_one(starts, ends, context, width, count):
    found = [
        (float(starts[first] * ends[last]), first, last)
        for first in range(len(starts))
        for last in range(first, min(first + width, len(starts)))
        if context[first] and context[last]
    ]
    return sorted(found, reverse=True)[:count]


@pytest.mark.parametrize("cells", [question_answering.CELLS, 1, 50])
@pytest.mark.parametrize("count", [1, 4, 200])
def test_the_best_spans_of_rows_with_widths_of_their_own(monkeypatch, cells, count):
    monkeypatch.setattr(question_answering, "CELLS", cells)
    numbers = np.random.default_rng(0)
    starts, ends = (torch.tensor(numbers.random((6, 11)), dtype=torch.float32) for _ in range(2))
    context = torch.tensor(numbers.random((6, 11)) < 0.7)
    context[5] = False
    widths = [1, 2, 5, 11, 40, 3]
    scores, found = best_spans(starts, ends, context, torch.tensor(widths), count)
    assert scores.shape == found.shape[:2]
    for row, width in enumerate(widths):
        expected = one_by_one(starts[row], ends[row], context[row], width, count)
        places = [(first, last) for _, first, last in expected]
        assert found[row, : len(places)].tolist() == [list(place) for place in places]
        assert scores[row, : len(places)].tolist() == pytest.approx([score for score, _, _ in expected])
        assert (scores[row, len(places) :] == -1).all()


def test_chances_over_allowed_tokens_alone():
    chances = position_probabilities(torch.tensor([[1.0, 50.0, 2.0]]), torch.tensor([[True, False, True]]))
    assert chances[0].tolist() == pytest.approx([0.26894, 0, 0.73106], abs=1e-5)
