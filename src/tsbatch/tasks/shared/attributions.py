"""Integrated gradients: how much each part of an input contributed to the logit of one class.

::

    f(input) - f(baseline)  =  the sum of all attributions, up to the error of the integral

The gradient of the class's logit is integrated along the straight line from an uninformative baseline (padding, a black
image) to the input (Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", ICML 2017). Captum computes
it; texts come in as embeddings, images as pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import NotSupported, PayloadTooLarge, RequestError, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.settings import Section
from tsbatch.tasks.shared.grouping import group_equal
from tsbatch.tasks.shared.schemas import NUMBER, STRING, Schema, object_of
from tsbatch.tasks.shared.task_handler import abbreviate

if TYPE_CHECKING:
    from tsbatch.handler import BatchHandler

Array = np.ndarray[Any, Any]
Forward = Callable[..., torch.Tensor]
"""Maps inputs (n, …), and any further tensors of n rows, to logits (n, classes); rows must not affect each other."""
MAX_ROWS: Final = 16
"""Inputs in one pass. Gradients keep every layer's activations in memory, which a prediction does not."""
MAX_STEPS: Final = 3200
"""Steps of all items of a request, each a forward and a backward pass: 64 items with the default ``n_steps``."""
MAX_NAMES: Final = 20
"""Labels that a message lists."""


class ExplainingParameters(Section):
    """Parameters of a request to ``/explanations``; a prediction ignores them.

    Attributes:
        target: the class to explain; by default the best one.
        n_steps: points between baseline and input; more make ``delta`` smaller and take longer.
    """

    target: str | None = Field(default=None, description="/explanations: the label to explain; default: the best one")
    n_steps: int = Field(default=50, ge=1, le=500, description="/explanations: points between baseline and input")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Integrated gradients of n inputs.

    Attributes:
        attributions: in the shape of the inputs.
        values: the class's logit for each input, shape (n,).
        baselines: the class's logit for each baseline, shape (n,).
        deltas: the difference between the attributions' sum and ``values - baselines``, shape (n,).
    """

    attributions: torch.Tensor
    values: torch.Tensor
    baselines: torch.Tensor
    deltas: torch.Tensor


def explanation_schema(required: Mapping[str, Schema], optional: Mapping[str, Schema]) -> dict[str, Any]:
    """JSON Schema of one item's explanation: label, logit, baseline, delta, and these properties."""
    return object_of({"label": STRING, "logit": NUMBER, "baseline": NUMBER, "delta": NUMBER, **required}, optional)


def check_explains(handler: BatchHandler) -> None:
    """Check that the handler's model has gradients, and that Captum is installed.

    Raises:
        NotSupported: the model runs on another engine than PyTorch or as int8; or Captum is missing.
    """
    settings = handler.settings
    if settings.engine != "eager" or settings.dtype == "int8":
        expected = "tsbatch.engine eager and a dtype other than int8 in model-config.yaml"
        raise NotSupported(f"no gradients with the engine {settings.engine} and {settings.dtype}", expected=expected)
    try:
        import captum.attr  # noqa: F401
    except ImportError:
        raise NotSupported("Captum is not installed", expected="pip install 'tsbatch[explain]' on the server") from None


def find_class(target: str | None, names: Sequence[str], logits: torch.Tensor) -> int | Unprocessable:
    """Find the class to explain.

    Args:
        target: its name, as the client gave it; None for the best class.
        names: all classes.
        logits: the logits of this input, shape (classes,).

    Returns:
        The index of the class, or the error for this client.
    """
    if target is None:
        return int(logits.argmax())
    if target in names:
        return names.index(target)
    message = f"parameters.target: there is no label {target[:80]!r}"
    return Unprocessable(message, expected=f"one of: {abbreviate(names, MAX_NAMES)}")


def check_steps(items: Sequence[Item]) -> list[PayloadTooLarge | None]:
    """For each item an error if all items of its request together ask for too many steps, else None."""
    steps: Counter[int] = Counter()
    for item in items:
        steps[id(item.request)] += item.parameters.n_steps
    message = "the items of the request have {:,} n_steps together, over the limit of {:,}"
    return [
        PayloadTooLarge(message.format(count, MAX_STEPS), expected="fewer items, or a smaller n_steps")
        if (count := steps[id(item.request)]) > MAX_STEPS
        else None
        for item in items
    ]


def share_passes(keys: Sequence[Hashable], rows: int = MAX_ROWS) -> Iterator[list[int]]:
    """Positions of the inputs that share a pass: those with equal keys, at most ``rows`` of them."""
    for indices in group_equal(keys):
        for start in range(0, len(indices), rows):
            yield indices[start : start + rows]


def explain_in_passes(
    items: Sequence[Item],
    features: Sequence[Any],
    explain: Callable[[list[Item], list[Any]], Sequence[Any]],
    *,
    key: Callable[[Any], Hashable] | None = None,
    length: Callable[[Any], int] | None = None,
) -> list[Any]:
    """Explain the items, as many together as may share a pass.

    Args:
        items: the items of a batch.
        features: the feature of each item, or its error, which is passed through.
        explain: called with items of equal ``n_steps`` and their features; returns one explanation or error for each.
        key: of a feature; only those with equal keys share a pass. None: all may.
        length: of a feature; those of similar length share a pass.

    Returns:
        For each item its explanation or error.
    """
    results: list[Any] = [error or feature for error, feature in zip(check_steps(items), features, strict=True)]
    ready = [index for index, result in enumerate(results) if not isinstance(result, RequestError)]
    if length is not None:
        ready.sort(key=lambda index: length(results[index]))
    keys = [(items[index].parameters.n_steps, key and key(results[index])) for index in ready]
    for members in share_passes(keys):
        indices = [ready[member] for member in members]
        found = explain([items[index] for index in indices], [results[index] for index in indices])
        for index, explanation in zip(indices, found, strict=True):
            results[index] = explanation
    return results


def explain_inputs(
    forward: Forward,
    inputs: torch.Tensor,
    baselines: torch.Tensor,
    items: Sequence[Item],
    names: Sequence[str],
    *,
    context: tuple[torch.Tensor, ...],
    sum_over: int,
    details: Callable[[int, Array], Mapping[str, Any]],
) -> list[Any]:
    """Explain inputs of equal ``n_steps`` in one pass.

    Args:
        forward: see :func:`integrated_gradients`, as are ``inputs``, ``baselines`` and ``context``.
        inputs: one an item.
        baselines: one an item.
        items: the items, whose parameters tell which class to explain.
        names: the names of the classes.
        context: further arguments of ``forward``.
        sum_over: the dimension of the inputs to add attributions up over: embedding width, or color channels.
        details: called with an input's index and summed attributions; returns the rest of its explanation.

    Returns:
        For each item its explanation, or the error for an unknown label.
    """
    with torch.no_grad():
        logits = forward(inputs, *context)
    classes = [find_class(item.parameters.target, names, row) for item, row in zip(items, logits, strict=True)]
    found = integrated_gradients(
        forward,
        inputs,
        baselines,
        [0 if isinstance(label, Unprocessable) else label for label in classes],
        context=context,
        n_steps=items[0].parameters.n_steps,
    )
    summed = found.attributions.float().sum(sum_over).cpu().numpy()
    numbers = zip(found.values.tolist(), found.baselines.tolist(), found.deltas.tolist(), strict=True)
    return [
        label
        if isinstance(label, Unprocessable)
        else {
            "label": names[label],
            "logit": logit,
            "baseline": baseline,
            "delta": delta,
            **details(index, summed[index]),
        }
        for index, (label, (logit, baseline, delta)) in enumerate(zip(classes, numbers, strict=True))
    ]


def integrated_gradients(
    forward: Forward,
    inputs: torch.Tensor,
    baselines: torch.Tensor,
    targets: Sequence[int],
    *,
    context: tuple[torch.Tensor, ...] = (),
    n_steps: int = 50,
    rows: int = MAX_ROWS,
) -> Explanation:
    """Compute the attributions of every input to the logit of its class.

    Args:
        forward: called as ``forward(inputs, *context)`` with up to ``rows`` rows, or one for each input.
        inputs: shape (n, …), floating point.
        baselines: what the inputs are compared with, of the same shape.
        targets: the class of each input.
        context: further arguments of ``forward``, n rows each.
        n_steps: points between baseline and input (Gauss-Legendre quadrature).
        rows: the largest number of inputs in one pass.
    """
    from captum.attr import IntegratedGradients

    classes = torch.tensor(targets, device=inputs.device)
    attributions: torch.Tensor = IntegratedGradients(forward).attribute(
        inputs,
        baselines,
        target=classes,
        additional_forward_args=context or None,
        n_steps=n_steps,
        internal_batch_size=max(rows, len(inputs)),
    )
    with torch.no_grad():
        values, blank = (
            forward(given, *context).gather(1, classes[:, None])[:, 0].float() for given in (inputs, baselines)
        )
    sums = attributions.float().flatten(1).sum(1)
    return Explanation(attributions.detach(), values, blank, (sums - (values - blank)).detach())
