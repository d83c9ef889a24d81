"""Names, shapes and types of a numeric model's inputs, and the conversion of values to them.

They are declared in the section ``handler:`` of model-config.yaml, or read from an ONNX graph or an exported program.
``null`` in a shape is a size that differs from item to item; the dimension of the batch is left out::

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
MAX_SIZES: Final = 8
"""Sizes of a shape that a message lists."""


class TensorInput(Section):
    """One input of a model.

    Attributes:
        name: the key in an object of named tensors; the inputs' order is that of the model's arguments.
        shape: sizes of one item, null for one that differs; by default any shape.
        dtype: the type to cast values to, if nothing is lost; by default numbers without a type become float32.
    """

    name: str = "input"
    shape: list[Size | None] | None = None
    dtype: Dtype | None = None

    def read(self, value: Any, where: str) -> Array:
        """Convert a value to an array of this input's shape, in its own type.

        Args:
            value: nested lists of numbers, or an array.
            where: names the value in messages.

        Raises:
            Unprocessable: it is not numbers, nested unevenly, or of another shape.
        """
        array = np.asarray(value) if is_typed(value) else _numbers(value, where)
        if self.shape is not None and not (
            len(array.shape) == len(self.shape)
            and all(size in (None, found) for size, found in zip(self.shape, array.shape, strict=True))
        ):
            message = f"{where} has the shape {render_shape(array.shape)}"
            raise Unprocessable(message, expected=f"{render_shape(self.shape)} for one item; null is any size")
        return array

    def cast(self, rows: Array, where: str, *, typed: bool) -> Array:
        """Cast stacked results of :meth:`read` to this input's type.

        Args:
            rows: shape (items, ...).
            where: names the first of them in messages.
            typed: whether they have a type of their own, which they keep if none is declared.

        Raises:
            Unprocessable: a number of one of them does not fit.
        """
        if self.dtype is not None:
            return _cast(rows, np.dtype(self.dtype), where)
        return rows if typed or rows.dtype.kind == "b" else _cast(rows, _FLOAT32, where)

    def example(self) -> list[Any] | None:
        """Zeros of this input's shape, as JSON; None if a size is open."""
        if self.shape is None or None in self.shape or math.prod(map(int, filter(None, self.shape))) > 1_000_000:
            return None
        zeros: list[Any] = np.zeros([size or 0 for size in self.shape], self.dtype or "float32").tolist()
        return zeros


def is_typed(value: Any) -> bool:
    """Whether a value has a numeric type of its own: in files and Open Inference tensors it has, in JSON not."""
    return isinstance(value, _TYPED)


def stack(arrays: Sequence[Array]) -> Array:
    """Stack arrays of one shape and type, several times faster than ``np.stack``."""
    first = arrays[0]
    return np.concatenate(arrays).reshape(len(arrays), *first.shape) if first.ndim else np.array(arrays)


def split_rows(
    arrays: Mapping[str, Array], inputs: Sequence[TensorInput], max_items: int
) -> tuple[list[dict[str, Array]], bool]:
    """Split the arrays of a file into items.

    Arrays with exactly as many dimensions as their inputs declare are one item; otherwise each row is one.

    Args:
        arrays: the arrays by name.
        inputs: the declared inputs.
        max_items: the limit for the number of items.

    Returns:
        The items, each with its arrays by name, and whether the file is one bare item.

    Raises:
        BadRequest: there is no row.
        PayloadTooLarge: there are too many rows.
        Unprocessable: the arrays have different numbers of rows, or none.
    """
    ndims = {entry.name: len(entry.shape) for entry in inputs if entry.shape is not None}
    if all(ndims.get(name) == array.ndim for name, array in arrays.items()):
        return [dict(arrays)], True
    counts = {array.shape[0] if array.ndim else -1 for array in arrays.values()}
    count = counts.pop()
    if counts or count < 0:
        raise Unprocessable("the arrays have different numbers of rows", expected="one row per item in each of them")
    if not count:
        raise BadRequest("the file has no item: its first dimension is 0", expected="at least one row")
    if count > max_items:
        message = f"the file has {count:,} items, over the limit of {max_items}"
        raise PayloadTooLarge(message, expected=f"{max_items} rows or fewer; send the rest in another request")
    return [dict(zip(arrays, row, strict=True)) for row in zip(*arrays.values(), strict=True)], False


def _numbers(value: Any, where: str) -> Array:
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        raise Unprocessable(f"{where} is nested unevenly", expected="lists of numbers of one length") from None
    if array.dtype.kind not in "biuf":
        raise Unprocessable(f"{where} has values that are not numbers", expected="a number, or nested lists of numbers")
    return array


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


def declared_inputs(model: Any) -> list[TensorInput]:
    """The inputs that an ONNX graph or an exported program declares; empty for any other model."""
    if isinstance(model, OnnxGraph):
        signature = model.signature
    elif isinstance(model, torch.fx.GraphModule):
        given = [(node.name, node.meta.get("val")) for node in model.graph.find_nodes(op="placeholder")]
        if not all(isinstance(value, torch.Tensor) and value.ndim for _, value in given):
            return []
        signature = [(name, list(value.shape), str(value.dtype).removeprefix("torch.")) for name, value in given]
    else:
        return []
    return [
        TensorInput.model_validate(
            {
                "name": name,
                "shape": [size if isinstance(size, int) else None for size in shape[1:]],  # None for a symbol
                "dtype": dtype if dtype in get_args(Dtype) else None,
            }
        )
        for name, shape, dtype in signature
    ]


def render_shape(shape: Sequence[int | None]) -> str:
    """A shape for a message; a long one is cut off."""
    more = ", …" if len(shape) > MAX_SIZES else ""
    return "[" + ", ".join("null" if size is None else str(size) for size in shape[:MAX_SIZES]) + more + "]"
