"""What the inputs of a numeric model are called, of which shape and type, and values made into them.

Declared in the section ``handler:`` of model-config.yaml, or read off an ONNX graph or an exported program. ``null`` in
a shape is a size that differs from item to item; the dimension of the batch is never written::

    handler:
      inputs:
        - {name: pixels, shape: [3, null, null], dtype: float32}
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, get_args

import numpy as np
import torch
from pydantic import Field

from tsbatch.errors import BadRequest, PayloadTooLarge, Unprocessable
from tsbatch.models.onnx_model import OnnxGraph
from tsbatch.settings import Section

Array = np.ndarray[Any, Any]
Dtype = Literal["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]

_TYPED: Final = (np.ndarray, np.generic)
_FLOAT32: Final = np.dtype(np.float32)
Size = Annotated[int, Field(ge=0)]
SHOWN: Final = 4
"""Sizes of a wrong shape that a message repeats."""


class TensorInput(Section):
    """One input of a model.

    Attributes:
        name: as in an object of named tensors; the inputs' order is that of the model's arguments.
        shape: sizes of one item, null for one that differs; left out: any.
        dtype: what values are cast to where nothing is lost; left out: numbers without a type become float32.
    """

    name: str = "input"
    shape: list[Size | None] | None = None
    dtype: Dtype | None = None

    def read(self, value: Any, where: str) -> Array:
        """``value`` as an array of this input's shape, in the type it came in.

        Args:
            value: nested lists of numbers, or an array.
            where: what it is, for messages.

        Raises:
            Unprocessable: not numbers, uneven, or of another shape.
        """
        array = np.asarray(value) if is_typed(value) else _numbers(value, where)
        if self.shape is not None and not _fits(array.shape, self.shape):
            message = f"{where} has the shape {shown(array.shape)}"
            raise Unprocessable(message, expected=f"{shown(self.shape)} for one item; null is any size")
        return array

    def cast(self, rows: Array, where: str, *, typed: bool) -> Array:
        """What :meth:`read` gave for some items, stacked, in this input's type.

        Args:
            rows: shape (items, ...).
            where: what the first of them is, for messages.
            typed: they came in a type, which they keep where none is declared.

        Raises:
            Unprocessable: a number of one of them does not fit.
        """
        if self.dtype is not None:
            return _cast(rows, np.dtype(self.dtype), where)
        return rows if typed or rows.dtype.kind == "b" else _cast(rows, _FLOAT32, where)

    def example(self) -> list[Any] | None:
        """Zeros of this input's shape, as JSON; None where any size is open."""
        if self.shape is None or None in self.shape or math.prod(map(int, filter(None, self.shape))) > 1_000_000:
            return None
        zeros: list[Any] = np.zeros([size or 0 for size in self.shape], self.dtype or "float32").tolist()
        return zeros


def is_typed(value: Any) -> bool:
    """Whether a value comes in a type of its own, as files and Open Inference tensors do, and JSON does not."""
    return isinstance(value, _TYPED)


def stacked(arrays: Sequence[Array]) -> Array:
    """Arrays of one shape and type as one with a row for each, several times faster than ``np.stack``."""
    first = arrays[0]
    return np.concatenate(arrays).reshape(len(arrays), *first.shape) if first.ndim else np.array(arrays)


def rows_of(
    arrays: Mapping[str, Array], inputs: Sequence[TensorInput], max_items: int
) -> tuple[list[dict[str, Array]], bool]:
    """Arrays of a file as items.

    An array of exactly as many dimensions as its input declares is one item, anything else has one item a row.

    Args:
        arrays: by name.
        inputs: the declared ones.
        max_items: more items than this are refused, before any is made.

    Returns:
        The items, each with its arrays by name, and whether the file is one bare item.

    Raises:
        BadRequest: no row.
        PayloadTooLarge: too many rows.
        Unprocessable: arrays of different numbers of rows, or a number where rows should be.
    """
    ndims = {entry.name: len(entry.shape) for entry in inputs if entry.shape is not None}
    if all(ndims.get(name) == array.ndim for name, array in arrays.items()):
        return [dict(arrays)], True
    counts = {array.shape[0] if array.ndim else -1 for array in arrays.values()}
    count = counts.pop()
    if counts or count < 0:
        raise Unprocessable("the arrays have different numbers of rows", expected="one row an item in each of them")
    if not count:
        raise BadRequest("the file has no item: its first dimension is 0", expected="at least one row")
    if count > max_items:
        message = f"the file has {count:,} items, and at most {max_items} are taken"
        raise PayloadTooLarge(message, expected=f"{max_items} rows or fewer; send the rest in another request")
    return [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)], False


def _numbers(value: Any, where: str) -> Array:
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        raise Unprocessable(f"{where} is nested unevenly", expected="lists of numbers of one length") from None
    if array.dtype.kind not in "biuf":
        raise Unprocessable(f"{where} is not numbers alone", expected="a number, or nested lists of numbers")
    return array


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(size in (None, found) for size, found in zip(wanted, shape, strict=True))


def _cast(array: Array, dtype: np.dtype[Any], where: str) -> Array:
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    if dtype.kind == "f":
        kept = array.dtype.kind in "iuf" and bool(
            np.isfinite(cast).all() or np.isfinite(cast[np.isfinite(array)]).all()
        )
    else:
        kept = (dtype.kind == "b") == (array.dtype.kind == "b") and bool((cast == array).all())
    if not kept:
        raise Unprocessable(f"{where} has {array.dtype} values that do not fit {dtype}", expected=f"{dtype} values")
    return cast


def declared_by(model: Any) -> list[TensorInput]:
    """The inputs that an ONNX graph or an exported program declares itself; none for any other model."""
    if isinstance(model, OnnxGraph):
        signature = model.signature
    elif isinstance(model, torch.fx.GraphModule):
        given = [(node.name, node.meta.get("val")) for node in model.graph.find_nodes(op="placeholder")]
        if not all(isinstance(value, torch.Tensor) and value.ndim for _, value in given):
            return []
        signature = [(name, list(value.shape), _known_dtype(value.dtype)) for name, value in given]
    else:
        return []
    return [
        TensorInput.model_validate({"name": name, "shape": [_size(size) for size in shape[1:]], "dtype": dtype})
        for name, shape, dtype in signature
    ]


def _known_dtype(dtype: torch.dtype) -> str | None:
    name = str(dtype).removeprefix("torch.")
    return name if name in get_args(Dtype) else None


def _size(size: Any) -> int | None:
    return size if isinstance(size, int) else None  # an open one is a name or a symbol


def shown(shape: Sequence[int | None]) -> str:
    """A shape for a message, a long one cut off."""
    more = ", …" if len(shape) > 2 * SHOWN else ""
    return "[" + ", ".join("null" if size is None else str(size) for size in shape[: 2 * SHOWN]) + more + "]"
