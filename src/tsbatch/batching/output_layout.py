"""Where the items of a batch are in what a model returns, found by trying and never guessed from matching sizes.

A model may return one tensor, several (a tuple, a list or a mapping of outputs), or a list with one entry for each
item, as detectors do. Two outputs for two items look like two entries for two items, so one batch cannot tell. The
answers to batches of one, two and three items can: the dimension or the list that counts the items is the one
whose size is 1, 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch

from tsbatch.errors import TsbatchError

SIZES: Final = (1, 2, 3)
"""Items in the batches that are compared; no constant number of outputs or rows passes for all three."""
TOLERANCE: Final = {"rtol": 1e-3, "atol": 1e-4}
"""Float32 sums in another order differ by less, wrong rows by more."""


class UnclearLayout(TsbatchError):
    """The items of a batch cannot be told apart in what the model returns; the message says what was seen."""


class Layout(Protocol):
    """How to split what a model returns for ``count`` items into one result for each item."""

    def split(self, output: Any, count: int) -> list[Any]:
        """One result for each item, in order.

        Raises:
            UnclearLayout: the output differs from what was found before.
        """


@dataclass(frozen=True)
class Axis:
    """A tensor with the items along one dimension; 0 for most models, 1 for the states of a recurrent one."""

    number: int

    def split(self, output: Any, count: int) -> list[torch.Tensor]:
        """See :class:`Layout`."""
        size = output.shape[self.number] if _is_tensor(output) and output.ndim > self.number else None
        if size != count:
            raise UnclearLayout(f"the model returned {_shown(output)} for {count} items")
        return list(output.unbind(self.number))


@dataclass(frozen=True)
class Entries:
    """A list or tuple with one entry for each item."""

    def split(self, output: Any, count: int) -> list[Any]:
        """See :class:`Layout`."""
        if not isinstance(output, list | tuple) or len(output) != count:
            raise UnclearLayout(f"the model returned {_shown(output)} for {count} items")
        return list(output)


@dataclass(frozen=True)
class Outputs:
    """Several outputs, each with a layout of its own: by name, or by position in a list or tuple."""

    parts: Mapping[Any, Layout]
    named: bool

    def split(self, output: Any, count: int) -> list[Any]:
        """See :class:`Layout`."""
        kind: Any = Mapping if self.named else list | tuple
        keys = set(_parts(output)) if isinstance(output, kind) else None
        if keys != set(self.parts):
            raise UnclearLayout(f"the model returned {_shown(output)} for {count} items")
        columns = {key: part.split(output[key], count) for key, part in self.parts.items()}
        rows = [{key: column[row] for key, column in columns.items()} for row in range(count)]
        return rows if self.named else [tuple(row.values()) for row in rows]


def find_layout(run: Callable[[Sequence[int]], Any]) -> tuple[Layout, bool]:
    """The layout of a model's output, and whether an item's result is the same whatever shares its batch.

    Args:
        run: computes a batch of the example items with these indices, out of 0, 1 and 2.

    Returns:
        The layout; False beside it if results differ between a batch and the item alone.

    Raises:
        UnclearLayout: no layout or several fit what the model returns for one, two and three items.
    """
    together = [run(range(size)) for size in SIZES]
    layout = _layout(together, "the model")
    alone = [layout.split(run([index]), 1)[0] for index in range(max(SIZES))]
    same = all(
        _close(result, alone[index])
        for size, output in zip(SIZES, together, strict=True)
        for index, result in enumerate(layout.split(output, size))
    )
    return layout, same


def _layout(outputs: Sequence[Any], what: str) -> Layout:
    first = outputs[0]
    if all(_is_tensor(output) for output in outputs):
        return _axis(outputs, what)
    if all(isinstance(output, list | tuple) for output in outputs) and tuple(map(len, outputs)) == SIZES:
        return Entries()
    same_kind = all(isinstance(output, Mapping) == isinstance(first, Mapping) for output in outputs)
    keys = [_parts(output) for output in outputs]
    if same_kind and keys[0] and keys[0] == keys[1] == keys[2]:
        parts = {key: _layout([output[key] for output in outputs], f"its output {key!r}") for key in keys[0]}
        return Outputs(parts, isinstance(first, Mapping))
    raise _unclear(what, outputs)


def _axis(outputs: Sequence[torch.Tensor], what: str) -> Axis:
    if len({output.ndim for output in outputs}) == 1:
        shapes = zip(*(output.shape for output in outputs), strict=True)
        numbers = [number for number, sizes in enumerate(shapes) if sizes == SIZES]
        if len(numbers) == 1:
            return Axis(numbers[0])
    raise _unclear(what, outputs)


def _unclear(what: str, outputs: Sequence[Any]) -> UnclearLayout:
    seen = ", ".join(map(_shown, outputs))
    return UnclearLayout(
        f"{what} returned {seen} for 1, 2 and 3 items: it is not clear which part belongs to which item"
    )


def _parts(output: Any) -> list[Any]:
    """The keys of an output's parts; those that are None hold nothing."""
    pairs = output.items() if isinstance(output, Mapping) else enumerate(output) if _is_sequence(output) else ()
    return [key for key, value in pairs if value is not None]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _close(one: Any, other: Any) -> bool:
    if _is_tensor(one) and _is_tensor(other):
        return one.shape == other.shape and torch.allclose(one.double(), other.double(), **TOLERANCE, equal_nan=True)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_close(one[key], other[key]) for key in one)
    if _is_sequence(one) and _is_sequence(other):
        return len(one) == len(other) and all(map(_close, one, other))
    return type(one) is type(other) and bool(one == other)


def _shown(value: Any) -> str:
    if _is_tensor(value):
        return f"a tensor of shape {list(value.shape)}"
    return (
        f"a {type(value).__name__} of {len(value)}" if isinstance(value, Mapping | list | tuple) else f"{value!r:.40}"
    )
