"""From logits to labels, against torch's own functions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tsbatch.tasks.shared.classification import (
    ClassifyingParameters,
    classify,
    default_function,
    sigmoid,
    softmax,
    to_scores,
)

LOGITS = torch.tensor([[1.0, 3.0, 2.0], [-200.0, 0.0, 200.0], [0.5, 0.5, -1.0]])
NAMES = ["a", "b", "c"]


@pytest.mark.parametrize(
    "problem, count, expected",
    [
        (None, 3, "softmax"),
        (None, 1, "sigmoid"),
        ("single_label_classification", 3, "softmax"),
        ("single_label_classification", 1, "sigmoid"),
        ("multi_label_classification", 3, "sigmoid"),
        ("regression", 1, "none"),
        ("regression", 3, "none"),
    ],
)
def test_the_function_of_a_model_is_the_one_that_the_pipeline_takes(problem, count, expected):
    assert default_function(SimpleNamespace(problem_type=problem), count) == expected


def test_a_model_without_a_config_and_one_class_of_audio():
    assert default_function(None, 2) == "softmax"
    assert default_function(None, 1, single="softmax") == "softmax"


def test_softmax_and_sigmoid_are_torchs_and_do_not_overflow():
    with np.errstate(all="raise", under="ignore"):
        assert softmax(LOGITS.numpy()) == pytest.approx(LOGITS.softmax(-1).numpy(), abs=1e-7)
        assert sigmoid(LOGITS.numpy()) == pytest.approx(LOGITS.sigmoid().numpy(), abs=1e-7)


def test_each_row_has_its_own_function():
    scores = to_scores(LOGITS.numpy(), ["sigmoid", "none", "softmax"])
    assert scores.dtype == np.float32
    assert scores[0] == pytest.approx(LOGITS[0].sigmoid().numpy(), abs=1e-7)
    assert scores[1].tolist() == LOGITS[1].tolist()
    assert scores[2] == pytest.approx(LOGITS[2].softmax(-1).numpy(), abs=1e-7)


def test_each_item_gets_as_many_labels_as_it_asked_for():
    wishes = [ClassifyingParameters(top_k=2), ClassifyingParameters(top_k=None), ClassifyingParameters()]
    first, second, third = classify(LOGITS, wishes, NAMES, "none")
    assert first == [{"label": "b", "score": 3.0}, {"label": "c", "score": 2.0}]
    assert [entry["label"] for entry in second] == ["c", "b", "a"]
    assert third == {"label": "a", "score": 0.5}, "of equals the first"


def test_more_labels_than_there_are_gives_all():
    [answer] = classify(LOGITS[:1], [ClassifyingParameters(top_k=99)], NAMES, "softmax")
    assert [entry["label"] for entry in answer] == ["b", "c", "a"]
    assert sum(entry["score"] for entry in answer) == pytest.approx(1, abs=1e-6)


def test_half_precision_is_scored_in_single():
    [answer] = classify(LOGITS[:1].bfloat16(), [ClassifyingParameters()], NAMES, "softmax")
    assert answer["score"] == pytest.approx(float(LOGITS[0].softmax(-1)[1]), abs=1e-6)


@pytest.mark.parametrize("wrong", [{"top_k": -1}, {"top_k": "2"}, {"top_k": True}, {"function_to_apply": "tanh"}])
def test_wrong_wishes_are_refused(wrong):
    with pytest.raises(ValidationError):
        ClassifyingParameters(**wrong)
