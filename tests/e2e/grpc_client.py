"""A gRPC client for TorchServe's two services, without generated code.

The messages are built from the field tables below; names and numbers are those of TorchServe's inference.proto
and open_inference_grpc.proto (frontend/server/src/main/resources/proto). Only the fields a test needs are listed:
protobuf keeps the others as unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "bool": 8, "int32": 5, "int64": 3, "uint32": 13, "uint64": 4, "float": 2, "double": 1, "bytes": 12, "string": 9,
}  # fmt: skip
_INFERENCE = "org.pytorch.serve.grpc.inference"
_OPEN = "org.pytorch.serve.grpc.openinference"

_MESSAGES = {
    _INFERENCE: {
        "PredictionsRequest": {"model_name": (1, "string"), "model_version": (2, "string"), "input": (3, "map")},
        "PredictionResponse": {"prediction": (1, "bytes")},
    },
    _OPEN: {
        "Contents": {
            "bool_contents": (1, "*bool"),
            "int_contents": (2, "*int32"),
            "int64_contents": (3, "*int64"),
            "uint_contents": (4, "*uint32"),
            "uint64_contents": (5, "*uint64"),
            "fp32_contents": (6, "*float"),
            "fp64_contents": (7, "*double"),
            "bytes_contents": (8, "*bytes"),
        },
        "Tensor": {
            "name": (1, "string"),
            "datatype": (2, "string"),
            "shape": (3, "*int64"),
            "contents": (5, "Contents"),
        },
        "ModelInferRequest": {
            "model_name": (1, "string"),
            "model_version": (2, "string"),
            "id": (3, "string"),
            "inputs": (5, "*Tensor"),
            "raw_input_contents": (7, "*bytes"),
        },
        "ModelInferResponse": {
            "model_name": (1, "string"),
            "model_version": (2, "string"),
            "id": (3, "string"),
            "outputs": (5, "*Tensor"),
        },
    },
}

_CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


def _build() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for package, messages in _MESSAGES.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field, (number, kind) in fields.items():
                _add_field(message, f".{package}.", field, number, kind)
        pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for package, messages in _MESSAGES.items()
        for name in messages
    }


def _add_field(message: Any, prefix: str, name: str, number: int, kind: str) -> None:
    repeated, kind = kind.startswith("*") or kind == "map", kind.lstrip("*")
    field = message.field.add(name=name, number=number, label=3 if repeated else 1)
    if kind == "map":  # protobuf's map<string, bytes> is a repeated entry message with key and value
        entry = message.nested_type.add(name="InputEntry")
        entry.options.map_entry = True
        _add_field(entry, prefix, "key", 1, "string")
        _add_field(entry, prefix, "value", 2, "bytes")
        field.type, field.type_name = 11, f"{prefix}{message.name}.InputEntry"
    elif kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = 11, prefix + kind


_CLASSES = _build()


def _call(
    address: str, method: str, request: Any, answer: str, timeout: float, token: str | None, *, stream: bool = False
) -> Any:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(address) as channel:
        call = (channel.unary_stream if stream else channel.unary_unary)(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_CLASSES[answer].FromString,
        )
        answered = call(request, timeout=timeout, metadata=metadata)
        return list(answered) if stream else answered


def predictions(
    address: str, model: str, fields: Mapping[str, bytes], *, token: str | None = None, timeout: float = 60
) -> bytes:
    """The answer of gRPC Predictions, as the bytes the handler returned.

    Args:
        address: host:port of the gRPC inference service.
        model: the model's name.
        fields: the map ``input``: what REST would send as form fields.
        token: the inference token.
        timeout: seconds.

    Raises:
        grpc.RpcError: the call failed as a whole.
    """
    request = _CLASSES["PredictionsRequest"](model_name=model, input=dict(fields))
    method = f"/{_INFERENCE}.InferenceAPIsService/Predictions"
    return bytes(_call(address, method, request, "PredictionResponse", timeout, token).prediction)


def stream_predictions(
    address: str, model: str, fields: Mapping[str, bytes], *, token: str | None = None, timeout: float = 60
) -> list[bytes]:
    """The answers of gRPC StreamPredictions; arguments and errors as for :func:`predictions`."""
    request = _CLASSES["PredictionsRequest"](model_name=model, input=dict(fields))
    method = f"/{_INFERENCE}.InferenceAPIsService/StreamPredictions"
    answers = _call(address, method, request, "PredictionResponse", timeout, token, stream=True)
    return [bytes(answer.prediction) for answer in answers]


def model_infer(
    address: str, model: str, tensors: Sequence[tuple[str, str, Sequence[int], Sequence[Any]]], *, client_id: str = "",
    raw: Sequence[bytes] = (), token: str | None = None, timeout: float = 60,
) -> Any:  # fmt: skip
    """The ModelInferResponse of gRPC ModelInfer.

    Args:
        address: host:port of the gRPC inference service.
        model: the model's name.
        tensors: (name, datatype, shape, flat data) of each input; data of BYTES are bytes.
        client_id: the client's id of the request.
        raw: raw_input_contents, which TorchServe drops.
        token: the inference token.
        timeout: seconds.

    Raises:
        grpc.RpcError: the call failed as a whole.
    """
    inputs = []
    for name, datatype, shape, data in tensors:
        known = {_CONTENTS[datatype]: list(data)} if datatype in _CONTENTS else {}
        contents = _CLASSES["Contents"](**known)
        inputs.append(_CLASSES["Tensor"](name=name, datatype=datatype, shape=shape, contents=contents))
    request = _CLASSES["ModelInferRequest"](model_name=model, id=client_id, inputs=inputs, raw_input_contents=list(raw))
    method = f"/{_OPEN}.GRPCInferenceService/ModelInfer"
    return _call(address, method, request, "ModelInferResponse", timeout, token)


def outputs(response: Any) -> dict[str, Any]:
    """The outputs of a ModelInferResponse by name: NumPy arrays, and nested lists of bytes for BYTES.

    TorchServe writes each element of BYTES as its JSON text: a string comes with its quotation marks.
    """
    found: dict[str, Any] = {}
    for tensor in response.outputs:
        shape, data = tuple(tensor.shape), list(getattr(tensor.contents, _CONTENTS[tensor.datatype]))
        if tensor.datatype == "BYTES":
            found[tensor.name] = np.array(data, dtype=object).reshape(shape).tolist()
        else:
            dtype = tensor.datatype.lower().replace("fp", "float")
            found[tensor.name] = np.array(data, dtype=dtype).reshape(shape)
    return found
