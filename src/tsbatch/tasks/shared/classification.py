"""From logits to labels, for the classification of texts, images and audio.

The function that turns logits into scores is chosen as in transformers' pipelines
(transformers/pipelines/text_classification.py), and each item may ask for its own function and number of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
import torch
from pydantic import Field

from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.shared.schemas import NUMBER, STRING, Schema, array_of, object_of

Array = np.ndarray[Any, Any]
Function = Literal["softmax", "sigmoid", "none"]

LABEL_SCHEMA: Final[Schema] = object_of({"label": STRING, "score": NUMBER})
LABELS_SCHEMA: Final[Schema] = array_of(LABEL_SCHEMA)
"""JSON Schemas of one label, and of a list of labels, best first."""


class ClassifyingParameters(Section):
    """Parameters of a request; a task with another default of ``top_k`` overrides that field.

    Attributes:
        top_k: the number of labels, best first; null for all; 0 for the best alone, not in a list.
        function_to_apply: what turns logits into scores; by default the model's own function.
    """

    top_k: int | None = Field(default=0, ge=0, description="labels, best first; null: all; 0: the best, not in a list")
    function_to_apply: Function | None = Field(default=None, description="default: the model's own function")


def default_function(config: Any, count: int, *, single: Function = "sigmoid") -> Function:
    """The function that turns this model's logits into scores, unless a request asks for another.

    Args:
        config: a transformers config, read for its ``problem_type``; None for a model without one.
        count: the number of the model's classes.
        single: the function of a model with one class; transformers' audio pipeline uses softmax there.
    """
    problem = getattr(config, "problem_type", None)
    if problem == "regression":
        return "none"
    if problem == "multi_label_classification":
        return "sigmoid"
    return single if count == 1 else "softmax"


def softmax(logits: Array) -> Array:
    """The softmax over the last axis."""
    powers: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    powers /= powers.sum(axis=-1, keepdims=True)
    return powers


def sigmoid(logits: Array) -> Array:
    """1 / (1 + exp(-x)), without its overflow for very negative x."""
    powers = np.exp(-np.abs(logits))
    scores: Array = np.where(logits >= 0, 1, powers) / (1 + powers)
    return scores


FUNCTIONS: Final[Mapping[Function, Callable[[Array], Array]]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}


def to_scores(logits: Array, functions: Sequence[Function]) -> Array:
    """Scores of the shape of the logits (n, classes), each row by its own function."""
    if len(set(functions)) == 1:
        return FUNCTIONS[functions[0]](logits)
    scores = np.empty_like(logits)
    chosen = np.asarray(functions)
    for function in set(functions):
        rows = chosen == function
        scores[rows] = FUNCTIONS[function](logits[rows])
    return scores


def classify(
    logits: torch.Tensor, parameters: Sequence[ClassifyingParameters], names: Sequence[str], default: Function
) -> list[Any]:
    """The labels of each item of a batch.

    Args:
        logits: shape (n, classes), on the CPU.
        parameters: each item's parameters.
        names: the names of the classes.
        default: the function where an item asks for none (:func:`default_function`).

    Returns:
        For each item a list of ``{"label", "score"}``, best first, and of equal ones the first class first; with
        ``top_k`` 0 the best alone.
    """
    scores = to_scores(logits.float().numpy(), [asked.function_to_apply or default for asked in parameters])
    order = np.argsort(-scores, axis=-1, kind="stable")
    best = np.take_along_axis(scores, order, axis=-1)
    answers: list[Any] = []
    for classes, values, asked in zip(order, best, parameters, strict=True):
        kept = classes[: 1 if asked.top_k == 0 else asked.top_k]  # a slice up to None keeps all
        ranked = [{"label": names[index], "score": score} for index, score in zip(kept, values, strict=False)]
        answers.append(ranked[0] if asked.top_k == 0 else ranked)
    return answers


class Classifier:
    """The part that handlers for the classification of texts, images and audio share.

    Attributes:
        names: the names of the classes.
        default_function: turns logits into scores where an item asks for none.
    """

    names: Sequence[str]
    default_function: Function

    def postprocess(self, outputs: torch.Tensor, items: Sequence[Item]) -> list[Any]:
        """Turn logits (n, classes) into the labels that each request asks for."""
        return classify(outputs, [item.parameters for item in items], self.names, self.default_function)
