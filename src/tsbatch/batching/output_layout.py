"""Where the items of a batch are in what a model returns, found by trying and never guessed from matching sizes.

A model may return one tensor, several (a tuple, a list or a mapping of outputs), or a list with one entry for each
item, as detectors do. Two outputs for two items look like two entries for two items, so one batch cannot tell. The
answers to batches of one, two and three items can: the dimension or the list that counts the items is the one
whose size is 1, 2 and 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch

from tsbatch.batching.memory_cap import is_out_of_memory
from tsbatch.errors import ContractBroken, TsbatchError

logger = logging.getLogger("tsbatch")

SIZES: Final = (1, 2, 3)
"""Items in the batches that are compared; no constant number of outputs or rows passes for all three."""
ONE_PER_ITEM: Final = "tensors in which one dimension counts the items, or a list with one entry per item"
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
class Whole:
    """One item's result without a dimension for the items, from a model that takes one item at a time."""

    def split(self, output: Any, count: int) -> list[Any]:
        """See :class:`Layout`."""
        if count != 1:
            raise UnclearLayout(f"the model returned {_shown(output)} for {count} items")
        return [output]


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


class BatchedModel:
    """A model whose output is split into one result per item, by a layout that is proven before it is used.

    The proof runs once for each combination of ranks and types of the inputs, on the first item that has it and on
    variants of that item. A model that cannot take several items, or whose results depend on the other items of the
    batch, gets one item at a time.

    Args:
        call: runs the model on tensors by name, each with one row per item.
    """

    def __init__(self, call: Callable[[Mapping[Any, torch.Tensor]], Any]) -> None:
        self._call = call
        self._proven: dict[Any, tuple[Layout, bool] | UnclearLayout] = {}

    def run(self, batch: Mapping[Any, torch.Tensor]) -> Any:
        """Return a tensor with one row per item, or a list with one result per item.

        Raises:
            ContractBroken: the results cannot be assigned to the items.
            Exception: whatever the model raises.
        """
        try:
            layout, together = self.prove(batch)
            count = len(next(iter(batch.values())))
            if together:
                output = self._call(batch)
                whole = layout == Axis(0) and _is_tensor(output) and output.shape[:1] == (count,)
                return output if whole else layout.split(output, count)
            singles = ({name: tensor[index : index + 1] for name, tensor in batch.items()} for index in range(count))
            return [layout.split(self._call(single), 1)[0] for single in singles]
        except UnclearLayout as error:
            raise ContractBroken(str(error), expected=ONE_PER_ITEM) from error

    def prove(self, batch: Mapping[Any, torch.Tensor]) -> tuple[Layout, bool]:
        """Return the layout for inputs like these, and whether several items may share a pass.

        Raises:
            UnclearLayout: the results cannot be assigned to the items.
            Exception: the model raises for the first item alone.
        """
        key = tuple((name, tensor.ndim, tensor.dtype) for name, tensor in batch.items())
        if key not in self._proven:
            try:
                layout, together = self._prove({name: tensor[:1] for name, tensor in batch.items()})
                self._proven[key] = layout, together
                if not together:
                    logger.warning("items run one by one: the model takes no more, or its results depend on the others")
            except UnclearLayout as error:
                self._proven[key] = error
        found = self._proven[key]
        if isinstance(found, UnclearLayout):
            raise found
        return found

    def _prove(self, item: Mapping[Any, torch.Tensor]) -> tuple[Layout, bool]:
        alone = self._call(item)
        for pool in (_variants(item), {name: torch.cat([tensor] * 3) for name, tensor in item.items()}):
            try:
                return find_layout(partial(self._on_rows, pool))
            except UnclearLayout:  # noqa: PERF203  two tries
                raise
            except Exception as error:  # the variants may be no valid inputs, or the model takes one item only
                if is_out_of_memory(error):
                    raise
        return _layout_of_one(alone), False

    def _on_rows(self, pool: Mapping[Any, torch.Tensor], indices: Sequence[int]) -> Any:
        return self._call({name: tensor[list(indices)] for name, tensor in pool.items()})


def run_model(model: Any, tensors: Any, proven: dict[type, BatchedModel]) -> Any:
    """Run a model on a tensor, a tuple of arguments or a mapping of named ones, each with one row per item.

    Args:
        model: the model.
        tensors: its arguments.
        proven: keeps what is found out about the model; empty at first.

    Returns:
        The output of the model if it is one tensor or if the arguments have no rows; otherwise one result per item.

    Raises:
        ContractBroken: the results cannot be assigned to the items.
    """
    if isinstance(tensors, Mapping):
        named, call = tensors, partial(_call_by_name, model)
    else:
        named, call = dict(enumerate(tensors if isinstance(tensors, tuple) else (tensors,))), partial(_call, model)
    if type(tensors) not in proven:
        output = call(named)
        if _is_tensor(output) or not _have_rows(named):
            return output
        proven[type(tensors)] = BatchedModel(call)
    return proven[type(tensors)].run(named)


def _call(model: Any, batch: Mapping[Any, Any]) -> Any:
    return model(*batch.values())


def _call_by_name(model: Any, batch: Mapping[Any, Any]) -> Any:
    return model(**batch)


def _have_rows(batch: Mapping[Any, Any]) -> bool:
    sizes = {len(value) if _is_tensor(value) and value.ndim else None for value in batch.values()}
    return len(sizes) == 1 and None not in sizes


def _variants(item: Mapping[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
    """Three inputs that differ where they can, made of the values of one: valid ids stay valid ids."""
    return {
        name: torch.cat([tensor, tensor.flip(list(range(1, tensor.ndim))), tensor.flatten().roll(1).view_as(tensor)])
        for name, tensor in item.items()
    }


def _layout_of_one(output: Any) -> Layout:
    """The layout of a model that takes one item only; a leading dimension of one is that of the items."""
    if _is_tensor(output) and output.ndim and output.shape[0] == 1:
        return Axis(0)
    keys = _parts(output)
    if not keys:
        return Whole()
    return Outputs({key: _layout_of_one(output[key]) for key in keys}, isinstance(output, Mapping))


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
