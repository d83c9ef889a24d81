"""Integrated gradients: what each part of an input added to the logit of one class.

::

    f(input) - f(baseline)  =  the sum of all attributions, up to the error of the integral

The gradient of the class's logit is followed along the straight way from a baseline that says nothing (padding, a black
image) to the input (Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", ICML 2017). Captum computes
it; texts come in as embeddings, images as pixels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from pydantic import Field

from tsbatch.errors import NotSupported, PayloadTooLarge, Unprocessable
from tsbatch.protocol.request import Item
from tsbatch.settings import Section

if TYPE_CHECKING:
    from tsbatch.handler import BatchHandler

Forward = Callable[..., torch.Tensor]
"""Inputs (n, …), and any further tensors of n rows, to logits (n, classes); rows must not depend on each other."""
ROWS: Final = 16
"""Inputs in one pass. Gradients keep every layer's states in memory, which a prediction does not."""
STEPS: Final = 3200
"""Points of a request's items together, each a pass there and back: what 64 items have that ask for nothing else."""


class ExplainingParameters(Section):
    """What a request to ``/explanations`` may ask for; a prediction has no use for them.

    Attributes:
        target: the class to explain; the best one when left out.
        n_steps: points on the way from the baseline; more make a smaller ``delta``, and take longer.
    """

    target: str | None = Field(default=None, description="/explanations: the label to explain; left out: the best one")
    n_steps: int = Field(default=50, ge=1, le=500, description="/explanations: points between baseline and input")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Integrated gradients of n inputs.

    Attributes:
        attributions: shaped as the inputs.
        values: the class's logit for each input, shape (n,).
        baselines: the same for each baseline, shape (n,).
        deltas: how far the attributions' sum is from ``values - baselines``, shape (n,).
    """

    attributions: torch.Tensor
    values: torch.Tensor
    baselines: torch.Tensor
    deltas: torch.Tensor


def check_explains(handler: BatchHandler) -> None:
    """See that the handler's model has gradients here.

    Raises:
        NotSupported: another engine than PyTorch computes it, or numbers without gradients; or Captum is missing.
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
    """The class to explain.

    Args:
        target: its name, as the client gave it; None for the best.
        names: all classes.
        logits: those of this input, shape (classes,).

    Returns:
        Its place, or the error for this one client.
    """
    if target is None:
        return int(logits.argmax())
    if target in names:
        return names.index(target)
    known = f"{', '.join(names[:20])}{' …' if len(names) > 20 else ''}"
    return Unprocessable(f"parameters.target: there is no label {target[:80]!r}", expected=f"one of: {known}")


def check_steps(items: Sequence[Item]) -> list[PayloadTooLarge | None]:
    """For each item what is wrong with its request, if all its items together want too many points."""
    wanted: Counter[int] = Counter()
    for item in items:
        wanted[id(item.request)] += item.parameters.n_steps
    message = "the items of the request have {:,} n_steps together, and at most {:,} are taken"
    return [
        PayloadTooLarge(message.format(count, STEPS), expected="fewer items, or a smaller n_steps")
        if (count := wanted[id(item.request)]) > STEPS
        else None
        for item in items
    ]


def share_passes(n_steps: Sequence[int], rows: int = ROWS) -> Iterator[list[int]]:
    """Places of the inputs that go together: those of one number of steps, and not too many."""
    for steps in sorted(set(n_steps)):
        places = [place for place, wanted in enumerate(n_steps) if wanted == steps]
        for start in range(0, len(places), rows):
            yield places[start : start + rows]


def integrated_gradients(
    forward: Forward,
    inputs: torch.Tensor,
    baselines: torch.Tensor,
    targets: Sequence[int],
    *,
    context: tuple[torch.Tensor, ...] = (),
    n_steps: int = 50,
    rows: int = ROWS,
) -> Explanation:
    """The attributions of every input to the logit of its class.

    Args:
        forward: called as ``forward(inputs, *context)`` with up to ``rows`` rows, or one for each input.
        inputs: shape (n, …), floating point.
        baselines: what they are compared with, of the same shape.
        targets: the class of each.
        context: what else ``forward`` needs, n rows each.
        n_steps: points on the way (Gauss-Legendre quadrature).
        rows: most inputs of one pass.
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
