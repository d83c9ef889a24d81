"""Serialise results to JSON: one call of orjson, and a helpful message if it fails.

orjson itself writes NumPy arrays and scalars, float32 in its shortest form. Torch tensors, arrays that orjson does not
support (not contiguous, object) and bytes go through one hook.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import orjson

from tsbatch.errors import ContractBroken

Nan = Literal["null", "error"]

RETURN = "lists, tuples, dicts, strings, numbers, None, NumPy arrays or tensors"
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
_MAX_DEPTH = 40  # orjson gives up at 254; longer paths help nobody


def dumps(value: Any, *, nan: Nan = "null") -> bytes:
    """Serialise ``value`` to JSON bytes.

    Args:
        value: lists, tuples, dicts, strings, numbers, NumPy arrays and scalars, torch tensors; ``bytes`` are
            written as ``{"b64": ...}``, as in KServe.
        nan: whether NaN and infinity, which JSON lacks, become ``null`` or an error.

    Raises:
        ContractBroken: the value cannot be serialised; the message says what and where, but never shows the value.
    """
    try:
        body = orjson.dumps(value, _default, _OPTIONS)
    except (TypeError, RecursionError):
        body = _second_try(value)
    if nan == "error" and b"null" in body:
        _refuse_nan(value)
    return body


def _second_try(value: Any) -> bytes:
    try:
        return orjson.dumps(value, _default, _OPTIONS | orjson.OPT_NON_STR_KEYS)
    except (TypeError, RecursionError) as error:
        path, culprit = _find_culprit(value)
        raise ContractBroken(f"answer{path} {_reason(culprit, error)}", expected=RETURN) from None


def as_array(value: Any) -> Any:
    """Convert a torch tensor to a NumPy array on the CPU (bfloat16 to float32); return anything else unchanged."""
    torch = sys.modules.get("torch")  # a tensor exists only if torch was imported
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # NumPy has no such type
        tensor = tensor.float()
    return tensor.resolve_conj().resolve_neg().numpy()


def _default(value: Any) -> Any:
    array = as_array(value)
    if isinstance(array, np.ndarray):
        if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8:
            return np.ascontiguousarray(array) if array.ndim else array[()]
        if array.dtype.kind in "biufOU":
            return array.tolist()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"b64": base64.b64encode(value).decode()}
    raise TypeError(type(value).__name__)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield f"[{key!r:.40}]" if isinstance(key, (str, int)) else f"[a {type(key).__name__}]", child
    elif isinstance(value, (list, tuple)):
        for index, child in enumerate(value):
            yield f"[{index}]", child


def _find_culprit(value: Any, path: str = "", parents: tuple[int, ...] = ()) -> tuple[str, Any]:
    """Return the path to the innermost value that cannot be serialised, and that value."""
    if id(value) in parents:
        return path, _Circle()
    if len(parents) < _MAX_DEPTH:
        for step, child in _children(value):
            try:
                orjson.dumps(child, _default, _OPTIONS | orjson.OPT_NON_STR_KEYS)
            except (TypeError, RecursionError):  # noqa: PERF203 - runs only after a failure
                return _find_culprit(child, path + step, (*parents, id(value)))
    return path, value


class _Circle:
    """Marks a value that contains itself."""


def _reason(culprit: Any, error: Exception) -> str:
    name = type(culprit).__name__
    if isinstance(culprit, _Circle):
        return "contains itself"
    if isinstance(culprit, str):
        return "is a str with half of a surrogate pair, which is not Unicode text"
    if isinstance(culprit, int):
        return "is an int of more than 64 bits"
    if isinstance(culprit, (dict, list, tuple)):
        return f"is a {name} that cannot be serialised: {error}"
    if dataclasses.is_dataclass(culprit):
        return f"is a dataclass ({name}); return dataclasses.asdict(...) instead"
    kind = f" of {culprit.dtype}" if hasattr(culprit, "dtype") else ""
    return f"is a {name}{kind}, which cannot be serialised as JSON"


def _refuse_nan(value: Any, path: str = "") -> None:
    """Raise for the first NaN or infinity in ``value``.

    Raises:
        ContractBroken: with the path to it.
    """
    array = as_array(value)
    if isinstance(array, (float, np.floating)):
        broken = not math.isfinite(array)
    else:
        broken = isinstance(array, np.ndarray) and array.dtype.kind == "f" and not np.isfinite(array).all()
    if broken:
        raise ContractBroken(
            f"answer{path} is or contains NaN or infinity, which this model is configured to reject",
            expected="finite numbers, or tsbatch.nan: null in model-config.yaml",
        )
    if isinstance(array, np.ndarray) and array.dtype.kind == "O":
        array = array.tolist()
    for step, child in _children(array):
        _refuse_nan(child, path + step)
