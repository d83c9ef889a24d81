"""The Open Inference Protocol (KServe v2): read tensors into items and write results as tensors.

REST bodies come from the client. The bodies of gRPC ModelInfer are made by TorchServe's Java code, which differs
(OpenInferenceProtocolImpl.java, GRPCJob.java, both verified on a running 0.12.0): BYTES arrive as base64, unsigned
numbers as signed ones, parameters and raw_input_contents not at all. In the reply it expects flat data without null
among the numbers, and turns the JSON text of each element into BYTES; anything else kills the worker.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tsbatch.errors import BadRequest, ContractBroken, PayloadTooLarge
from tsbatch.protocol.fields import Wants, as_object
from tsbatch.protocol.json_writer import Nan, as_array, dumps
from tsbatch.protocol.media_types import decode_base64, decode_text, parse_json
from tsbatch.protocol.request import Request

_DTYPES: Mapping[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "BF16": np.float32,  # NumPy has no bfloat16
    "FP32": np.float32,
    "FP64": np.float64,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items() if name != "BF16"}
_BODY_KEYS = frozenset({"id", "parameters", "inputs", "outputs", "model_name", "model_version"})
_TENSOR = '{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["one", "two"]}'


def is_open_inference(body: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a request in this protocol, i.e. its inputs are tensors."""
    inputs = body.get("inputs")
    if not isinstance(inputs, list):
        return False
    if not inputs:
        return "model_name" in body  # ModelInfer without a tensor; a plain body has no such key
    first = inputs[0]
    return isinstance(first, dict) and "datatype" in first and ("name" in first or "shape" in first)


def from_grpc(request: Request) -> bool:
    """Whether TorchServe made the body from a ModelInfer call, which has no headers; a REST call always has some."""
    body = request.fields.get("body")
    return (
        not request.headers
        and request.content_types.get("body") == "application/json"
        and isinstance(body, dict)
        and "model_name" in body
        and "id" in body
    )


def read_open_inference(
    body: Mapping[str, Any], *, wants: Wants, base64_data: bool, max_items: int
) -> tuple[list[Any], Mapping[str, Any]]:
    """Return the items of an Open Inference body and its parameters.

    The first dimension counts the items. With one tensor, an item is a row: a NumPy array or scalar, or a string for
    BYTES. With several tensors, an item is a dict of rows by name. A BYTES tensor named ``parameters`` with one JSON
    object holds parameters, for gRPC, where TorchServe drops the real ones.

    Args:
        body: the parsed body.
        wants: text, bytes or json, as in ``read_payload``.
        base64_data: BYTES data are always base64, as from gRPC.
        max_items: more items than this are rejected before any array is created.

    Raises:
        BadRequest: the tensors cannot be read, or do not match each other.
        PayloadTooLarge: too many items.
    """
    for key in body:
        if key not in _BODY_KEYS:
            raise BadRequest(
                f"the key {key[:40]!r} is not known in an Open Inference body",
                expected=f"the keys {', '.join(sorted(_BODY_KEYS))}; parameters go into the object parameters",
            )
    columns: dict[str, Any] = {}
    for tensor in body["inputs"]:
        name, shape = _head(tensor)
        if shape[0] > max_items:
            message = f"the tensor {name!r} has {shape[0]} items, but at most {max_items} are accepted"
            raise PayloadTooLarge(message, expected=f"{max_items} items or fewer; send the rest in another request")
        if name in columns:
            raise BadRequest(f"there are two tensors named {name!r}", expected="one tensor for each name")
        columns[name] = _rows(tensor, name, shape, wants, base64_data)
    parameters = as_object(body.get("parameters"), '"parameters"')
    if len(columns) > 1 and "parameters" in columns:
        parameters = {**_tensor_parameters(columns.pop("parameters")), **parameters}
    return _items(columns), parameters


def _tensor_parameters(rows: Any) -> Mapping[str, Any]:
    if len(rows) != 1 or not isinstance(rows[0], (str, bytes)):
        raise BadRequest('the tensor "parameters" is not one string', expected="shape [1], BYTES, one JSON object")
    return as_object(parse_json(rows[0], 'the tensor "parameters"'), 'the tensor "parameters"')


def _head(tensor: Any) -> tuple[str, list[int]]:
    if not isinstance(tensor, dict):
        raise BadRequest("an element of inputs is not a tensor", expected=_TENSOR)
    missing = [key for key in ("name", "datatype", "shape") if key not in tensor]
    if missing:
        raise BadRequest(f"a tensor in inputs lacks {' and '.join(missing)}", expected=_TENSOR)
    name, shape = str(tensor["name"])[:80], tensor["shape"]
    if not isinstance(shape, list) or not shape or not all(type(size) is int and size >= 0 for size in shape):
        message = f"the shape of the tensor {name!r} is not a list of sizes with at least one"
        raise BadRequest(message, expected="the first dimension counts the items, as in [1, 3]")
    return name, shape


def _items(columns: Mapping[str, Any]) -> list[Any]:
    counts = {name: len(rows) for name, rows in columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name!r} {count}" for name, count in counts.items())
        raise BadRequest(f"the tensors have different numbers of items: {listed}", expected="the same first dimension")
    if len(columns) == 1:
        return list(*columns.values())
    return [dict(zip(columns, rows, strict=True)) for rows in zip(*columns.values(), strict=True)]


def _rows(tensor: Mapping[str, Any], name: str, shape: list[int], wants: Wants, base64_data: bool) -> Any:
    data, datatype = tensor.get("data"), tensor["datatype"]
    if not isinstance(data, list):
        why = "has no data"
        if datatype in ("FP16", "BF16"):
            why += f", and TorchServe passes none of {datatype} on from gRPC"
        raise BadRequest(f"the tensor {name!r} {why}", expected='"data" with a list, flat or nested')
    size = math.prod(shape)
    if datatype == "BYTES":
        return _strings(_flat(data), name, shape, size, wants, base64_data)
    if not isinstance(datatype, str) or datatype not in _DTYPES:
        message = f"the tensor {name!r} has the datatype {str(datatype)[:40]!r}, which is not known"
        raise BadRequest(message, expected=f"one of {', '.join([*_DTYPES, 'BYTES'])}")
    try:
        array = np.array(data)
        _check_size(array.size, size, name, shape)
        return _cast(array, data, datatype, name, wraps=base64_data).reshape(shape)
    except ValueError:
        message = f"the data of the tensor {name!r} are nested unevenly, or its shape is too large"
        raise BadRequest(message, expected="flat data and the shape they have") from None


def _check_size(found: int, size: int, name: str, shape: list[int]) -> None:
    if found != size:
        message = f"the tensor {name!r} has {found} values, and its shape {shape} needs {size}"
        hint = "; TorchServe drops raw_input_contents, so send contents" if not found else ""
        raise BadRequest(message, expected=f"data and shape that agree{hint}")


def _cast(array: Any, data: list[Any], datatype: str, name: str, *, wraps: bool) -> Any:
    """``array`` in the dtype of ``datatype``; ``wraps`` for Java, which holds unsigned numbers as signed ones."""
    dtype = np.dtype(_DTYPES[datatype])
    if array.size == 0:
        return array.astype(dtype)
    if dtype.kind == "u" and array.dtype.kind in "fO":
        array = np.array(data, dtype=object)  # NumPy makes floats of integers when one of them needs all 64 bits
        if all(type(value) is int and 0 <= value < 2**64 for value in array.flat):
            array = array.astype(np.uint64)
    allowed = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
    if array.dtype.kind not in allowed:
        raise BadRequest(f"the data of the tensor {name!r} are not all {datatype}", expected=_expected(dtype))
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    fits = np.isfinite(cast) | ~np.isfinite(array) if dtype.kind == "f" else cast == array
    if not (fits.all() or (wraps and dtype.kind == "u" and dtype.itemsize >= 4)):
        raise BadRequest(f"a value of the tensor {name!r} does not fit {datatype}", expected=_expected(dtype))
    return cast


def _expected(dtype: Any) -> str:
    if dtype.kind == "b":
        return "true or false"
    return "numbers" if dtype.kind == "f" else f"whole numbers from {np.iinfo(dtype).min} to {np.iinfo(dtype).max}"


def _flat(data: Any) -> list[Any]:
    """The elements of nested lists, in order."""
    while any(isinstance(element, list) for element in data):
        data = [inner for element in data for inner in (element if isinstance(element, list) else [element])]
    return list(data)


def _strings(flat: list[Any], name: str, shape: list[int], size: int, wants: Wants, base64_data: bool) -> list[Any]:
    _check_size(len(flat), size, name, shape)
    where = f"the data of the tensor {name!r}"
    if not all(isinstance(element, str) for element in flat):
        raise BadRequest(f"{where} are not all strings", expected="strings; BYTES that are not text as base64")
    if base64_data:
        raw = [decode_base64(element, where) for element in flat]
        flat = list(raw) if wants == "bytes" else [decode_text(element, "", where) for element in raw]
    trailing = shape[1:]
    if wants != "json" and math.prod(trailing) == 1:  # [n, 1] is common for texts
        trailing = []
    for length in reversed(trailing):
        flat = [flat[start : start + length] for start in range(0, len(flat), length)] if length else flat
    return flat


def write_tensors(results: Sequence[Any], *, grpc: bool, nan: Nan = "null") -> list[dict[str, Any]]:
    """Results as output tensors, first dimension the items; data flat, ready for :func:`dumps`.

    Dicts with text keys become one tensor for each key, other results one named ``output``. Numbers of one shape keep
    their type (float16 and bfloat16 become FP32: no protobuf field holds them); strings become BYTES, ``bytes`` base64,
    everything else the JSON text of each result.

    Args:
        results: one for each item.
        grpc: write for TorchServe's Java: it makes BYTES out of each element's JSON text by itself, and reads NaN and
            infinity only as strings.
        nan: as in :func:`dumps`.

    Raises:
        ContractBroken: a result cannot be written.
    """
    if results and all(isinstance(result, dict) and result for result in results):
        names = dict.fromkeys(key for result in results for key in result)
        if all(isinstance(name, str) for name in names):
            return [_tensor(name, [result.get(name) for result in results], grpc, nan) for name in names]
    return [_tensor("output", list(results), grpc, nan)]


def _tensor(name: str, column: list[Any], grpc: bool, nan: Nan) -> dict[str, Any]:
    array = _numbers(column)
    if array is not None:
        data: Any = array.ravel()
        if data.dtype.kind == "f" and not np.isfinite(data).all():
            data = _not_finite(data, name, grpc, nan)
        return {"name": name, "datatype": _NAMES[array.dtype], "shape": list(array.shape), "data": data}
    if all(isinstance(value, str) for value in column):
        data = column
    elif all(isinstance(value, (bytes, bytearray, memoryview)) for value in column):
        data = [base64.b64encode(value).decode() for value in column]
    else:
        dumps(column, nan=nan)  # an error then names the item
        data = column if grpc else [dumps(value).decode() for value in column]
    return {"name": name, "datatype": "BYTES", "shape": [len(column)], "data": data}


def _numbers(column: list[Any]) -> Any:
    """The column as one array of numbers, or None where it is not numbers of one shape."""
    if not column or isinstance(column[0], (str, bytes, dict)) or len({type(v) is bool for v in column}) > 1:
        return None
    try:
        array = np.array([as_array(value) for value in column])
    except (ValueError, TypeError, RuntimeError, OverflowError):  # ragged, or a tensor that has no array
        return None
    if array.dtype == np.float16 or array.dtype == np.longdouble:
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if array.dtype in _NAMES else None


def _not_finite(data: Any, name: str, grpc: bool, nan: Nan) -> Any:
    if nan == "error":
        raise ContractBroken(
            f"answer[{name!r}] contains NaN or infinity, which this model is configured to reject",
            expected="finite numbers, or tsbatch.nan: null in model-config.yaml",
        )
    if not grpc:
        return data
    words = {math.inf: "Infinity", -math.inf: "-Infinity"}
    return [value if math.isfinite(value) else words.get(value, "NaN") for value in data.tolist()]
