"""From logits to labels: what classification of texts, images and audio shares.

Which function makes scores of logits is decided as transformers' pipelines do
(transformers/pipelines/text_classification.py), and each item may ask for its own function and number of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.settings import Section

Array = np.ndarray[Any, Any]
Function = Literal["softmax", "sigmoid", "none"]

LABEL_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["label", "score"],
    "properties": {"label": {"type": "string"}, "score": {"type": "number"}},
}
LABELS_SCHEMA: Final[Mapping[str, Any]] = {"type": "array", "items": LABEL_SCHEMA}
"""JSON Schemas of one label, and of a list of them, best first."""


class ClassifyingParameters(Section):
    """What a request may ask for; a task with another default of ``top_k`` overrides that field.

    Attributes:
        top_k: so many labels, best first; null for all; 0 for the best alone, not in a list.
        function_to_apply: what makes scores of logits; the model's own way when left out.
    """

    top_k: int | None = Field(default=0, ge=0, description="labels, best first; null: all; 0: the best, not in a list")
    function_to_apply: Function | None = Field(default=None, description="left out: the model's own way")


def usual_function(config: Any, count: int, *, single: Function = "sigmoid") -> Function:
    """What makes scores of this model's logits, unless a request asks otherwise.

    Args:
        config: a transformers config; its ``problem_type`` counts. None for a model without one.
        count: the model's classes.
        single: for a model of one class; transformers' audio pipeline has softmax there.
    """
    problem = getattr(config, "problem_type", None)
    if problem == "regression":
        return "none"
    if problem == "multi_label_classification":
        return "sigmoid"
    return single if count == 1 else "softmax"


def softmax(logits: Array) -> Array:
    """Each row (its last axis) to numbers that add up to 1."""
    powers: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x)), without the overflow that this has far below zero."""
    powers = np.exp(-np.abs(logits))
    scores: Array = np.where(logits >= 0, 1, powers) / (1 + powers)
    return scores


FUNCTIONS: Final[Mapping[Function, Callable[[Array], Array]]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}


def scores_of(logits: Array, functions: Sequence[Function]) -> Array:
    """Logits (n, classes) to scores of the same shape, each row by its own function."""
    if len(set(functions)) == 1:
        return FUNCTIONS[functions[0]](logits)
    scores = np.empty_like(logits)
    asked = np.asarray(functions)
    for function in set(functions):
        rows = asked == function
        scores[rows] = FUNCTIONS[function](logits[rows])
    return scores


def classify(
    logits: torch.Tensor, wishes: Sequence[ClassifyingParameters], names: Sequence[str], usual: Function
) -> list[Any]:
    """The answers of a batch.

    Args:
        logits: shape (n, classes), on the CPU.
        wishes: each item's parameters.
        names: the classes.
        usual: the function where an item asks for none (:func:`usual_function`).

    Returns:
        For each item a list of ``{"label", "score"}``, best first and of equals the first class first; with
        ``top_k`` 0 the best alone.
    """
    raw = logits.float().numpy()
    scores = scores_of(raw, [wish.function_to_apply or usual for wish in wishes])
    order = np.argsort(-scores, axis=-1, kind="stable")
    best = np.take_along_axis(scores, order, axis=-1)
    answers: list[Any] = []
    for classes, values, wish in zip(order, best, wishes, strict=True):
        kept = classes[: 1 if wish.top_k == 0 else wish.top_k]  # a slice up to None has all
        ranked = [{"label": names[place], "score": score} for place, score in zip(kept, values, strict=False)]
        answers.append(ranked[0] if wish.top_k == 0 else ranked)
    return answers
