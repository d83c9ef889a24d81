"""A transformers model as exporters want it: tensors by position in and out, rows and length left open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from tsbatch.models.engines import Forward, Source


class Positional(torch.nn.Module):
    """The model as exporters want it: tensors in by position, a tuple of tensors out."""

    def __init__(self, model: Any, inputs: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.inputs = tuple(inputs)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The model's outputs in the order of :func:`output_names`."""
        return _tensors(self.model(**dict(zip(self.inputs, tensors, strict=True))))


def output_names(source: Source) -> list[str]:
    """The names of the model's outputs, in their order."""
    with torch.inference_mode():
        output = source.model(**source.batch)
    return [name for name, value in output.items() if isinstance(value, torch.Tensor)]


def by_name(run: Callable[[Sequence[Any]], Sequence[Any]], inputs: Sequence[str], outputs: Sequence[str]) -> Forward:
    """A forward pass with named tensors, from one with positions.

    Args:
        run: tensors in the order of ``inputs`` to tensors in the order of ``outputs``.
        inputs: the names it takes, exactly.
        outputs: the names it gives.
    """

    def forward(**tensors: Any) -> SimpleNamespace:
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        if given.keys() != set(inputs):
            raise ValueError(f"the engine takes {', '.join(inputs)}, and was called with {', '.join(given)}")
        return SimpleNamespace(**dict(zip(outputs, run([given[name] for name in inputs]), strict=True)))

    return forward


def _tensors(output: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value for value in output.values() if isinstance(value, torch.Tensor))


def open_shapes(inputs: Sequence[str]) -> tuple[tuple[dict[int, Any], ...]]:
    """Rows and length of every input may vary; the one tuple is the star argument of :class:`Positional`."""
    return (tuple({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for _ in inputs),)
