"""Split the return value of a stage into one entry per input, and stack entries again.

A stage may return a list, or arrays whose leading dimension is the number of inputs: a tensor, a NumPy array, or a
mapping or tuple of those (as tokenizers and transformers models return). Anything else, or the wrong number, is an
error that names both numbers and shows the correct shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tsbatch.errors import ContractBroken


def split(returned: Any, count: int, *, stage: str, what: str) -> list[Any]:
    """Return one entry for each of ``count`` inputs.

    Args:
        returned: the return value of the stage.
        count: number of inputs of the stage.
        stage: its name, for the message.
        what: what the stage returns for each input, for the message.

    Raises:
        ContractBroken: the type or the number is wrong.
    """
    entries = _entries(returned, count)
    if entries is None:
        raise ContractBroken(
            f"{stage} returned {_name(returned)} for {count} inputs",
            expected=f"a list of {count} {what}, or tensors with {count} rows",
            stage=stage,
        )
    if len(entries) != count:
        raise ContractBroken(
            f"{stage} returned {len(entries)} {what} for {count} inputs",
            expected=f"one for each input, in their order: a list of {count}, or tensors with {count} rows",
            stage=stage,
        )
    return entries


def _entries(returned: Any, count: int) -> list[Any] | None:
    if isinstance(returned, list):
        return returned
    if isinstance(returned, torch.Tensor):
        return list(returned.unbind(0)) if returned.dim() else None
    if isinstance(returned, np.ndarray):
        return list(returned) if returned.ndim else None
    if isinstance(returned, Mapping):
        return _split_mapping(returned, count)
    return _split_tuple(returned, count) if isinstance(returned, tuple) else None


def _split_mapping(returned: Mapping[str, Any], count: int) -> list[Any] | None:
    columns = {key: value for key, value in returned.items() if value is not None}
    if not columns or not all(_rows(value) is not None for value in columns.values()):
        return None
    if any(_rows(value) != count for value in columns.values()):
        return [None] * next(_rows(value) or 0 for value in columns.values() if _rows(value) != count)
    return [{key: value[row] for key, value in columns.items()} for row in range(count)]


def _split_tuple(returned: tuple[Any, ...], count: int) -> list[Any] | None:
    # (logits, hidden) with n rows each, as torch modules return several outputs. A tuple of n other results is a list;
    # a tuple of n arrays is not, since by chance each of them could have n rows.
    if not any(isinstance(value, (torch.Tensor, np.ndarray)) for value in returned):
        return list(returned)
    wrong = [_rows(value) or 0 for value in returned if _rows(value) != count]
    if wrong:
        return [None] * wrong[0]
    return [tuple(value[row] for value in returned) for row in range(count)]


def _rows(value: Any) -> int | None:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return value.shape[0] if value.ndim else None
    return len(value) if isinstance(value, list) else None


def _name(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def to_cpu(value: Any) -> Any:
    """Move the tensors in ``value`` to the CPU: one copy per tensor, not one per row."""
    if isinstance(value, torch.Tensor):
        return value if value.device.type == "cpu" else value.cpu()
    if isinstance(value, Mapping):
        return {key: to_cpu(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(to_cpu(entry) for entry in value)
    if isinstance(value, list):
        return [to_cpu(entry) for entry in value]
    return value


def stack(rows: Sequence[Any], *, stage: str) -> Any:
    """Stack rows that are tensors or arrays; return a list of other rows.

    Raises:
        ContractBroken: the rows differ in shape.
    """
    if not rows:
        return list(rows)
    first = rows[0]
    if isinstance(first, torch.Tensor):
        _same_shape(rows, stage)
        return torch.stack(list(rows))
    if isinstance(first, np.ndarray):
        _same_shape(rows, stage)
        return np.stack(rows)
    return list(rows)


def _same_shape(rows: Sequence[Any], stage: str) -> None:
    shapes = {getattr(row, "shape", ()) for row in rows}
    if len(shapes) > 1:
        raise ContractBroken(
            f"{stage} received rows of different shapes: {', '.join(map(str, sorted(map(tuple, shapes))[:4]))}",
            expected="rows of the same shape; if they differ, override collate (it pads), "
            "or return a list of rows from inference",
            stage=stage,
        )
