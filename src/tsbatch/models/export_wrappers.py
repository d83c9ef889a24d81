"""Adapters between a transformers model and an exporter: tensors by position, open batch size and sequence length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from tsbatch.models.engines import Forward, Source


class Positional(torch.nn.Module):
    """A model in the form that exporters expect: tensors in by position, a tuple of tensors out.

    Attributes:
        inputs: the names of the model's inputs, in order.
        outputs: the names of its outputs that are tensors, in order.
    """

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.model = source.model
        self.inputs = list(source.batch)
        with torch.inference_mode():
            output = source.model(**source.batch)
        self.outputs = [name for name, value in output.items() if isinstance(value, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the model's outputs in the order of :attr:`outputs`."""
        output = self.model(**dict(zip(self.inputs, tensors, strict=True)))
        return tuple(value for value in output.values() if isinstance(value, torch.Tensor))


def by_name(run: Callable[..., Iterable[Any]], inputs: Sequence[str], outputs: Sequence[str]) -> Forward:
    """Return a forward pass with named tensors, made from one with positional tensors.

    Args:
        run: takes tensors in the order of ``inputs``, returns tensors in the order of ``outputs``.
        inputs: the names of all inputs.
        outputs: the names of the outputs.
    """

    def forward(**tensors: Any) -> SimpleNamespace:
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        if given.keys() != set(inputs):
            raise ValueError(f"the engine takes {', '.join(inputs)}, and was called with {', '.join(given)}")
        return SimpleNamespace(**dict(zip(outputs, run(*(given[name] for name in inputs)), strict=True)))

    return forward


def by_name_on_arrays(
    run: Callable[[Mapping[str, Any]], Iterable[Any]], inputs: Sequence[str], outputs: Sequence[str]
) -> Forward:
    """Return a forward pass with named tensors, made from one that takes and returns NumPy arrays on the CPU.

    Args:
        run: takes arrays by name, returns arrays in the order of ``outputs``.
        inputs: the names of all inputs.
        outputs: the names of the outputs.
    """

    def run_tensors(*tensors: torch.Tensor) -> list[torch.Tensor]:
        arrays = dict(zip(inputs, (tensor.numpy() for tensor in tensors), strict=True))
        return [torch.from_numpy(array) for array in run(arrays)]

    return by_name(run_tensors, inputs, outputs)


def open_shapes(inputs: Sequence[str]) -> tuple[tuple[dict[int, Any], ...]]:
    """Leave batch size and length of every input open; the inner tuple is the star argument of :class:`Positional`."""
    return (tuple({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC} for _ in inputs),)
