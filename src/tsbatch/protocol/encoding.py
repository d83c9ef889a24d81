"""Encode results and errors in the protocol of the request.

========================  ==============================================  =====================================
protocol                  reply                                           error
========================  ==============================================  =====================================
plain                     the result, or a list of results                ``{"error": {"status", "code", ...}}``
kserve-v1                 ``{"predictions": [...]}``                      ``{"error": "text"}``
open-inference            ``{"id", "model_name", "model_version",         the same with ``"error": "text"`` and
                          "outputs": [tensor, ...]}``                     an output ``error``
========================  ==============================================  =====================================

TorchServe drops the status of a gRPC call and builds a ModelInferResponse from those four keys (GRPCJob.java); without
them it kills the worker. So they are always present, and the error is an output too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tsbatch.errors import BadRequest, ContractBroken, ReplyError
from tsbatch.protocol.json_writer import Nan, dumps
from tsbatch.protocol.open_inference import from_grpc, is_open_inference, write_tensors
from tsbatch.protocol.reply import Reply
from tsbatch.protocol.request import Protocol, Request

__all__ = ["MAX_MESSAGE", "ModelIdentity", "dumps", "encode_answer", "encode_error"]

MAX_MESSAGE = 2000
"""Maximum number of characters of an error text that reach the client."""
OCTETS = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """The name and version of the model that answers."""

    name: str
    version: str


def encode_answer(results: Sequence[Any], request: Request, model: ModelIdentity, *, nan: Nan = "null") -> Reply:
    """Encode the results of a request.

    Args:
        results: one per item, in order.
        request: the decoded request.
        model: the model that answers.
        nan: whether NaN and infinity become ``null`` or an error.

    Raises:
        ContractBroken: a result cannot be serialised; the message says which and why.
        BadRequest: an Open Inference request asked for an output that does not exist.
    """
    protocol = _protocol(request)
    if protocol == "plain" and request.single:
        if len(results) != 1:
            raise ContractBroken(f"{len(results)} results for a request with one item", expected="one result per item")
        result = results[0]
        if isinstance(result, (bytes, bytearray, memoryview)):
            return Reply(bytes(result), content_type=OCTETS)
        return Reply(dumps(result, nan=nan))
    if not isinstance(results, list):
        results = list(results)
    if protocol == "plain":
        return Reply(dumps(results, nan=nan))
    if protocol == "kserve-v1":
        return Reply(dumps({"predictions": results}, nan=nan))
    outputs = write_tensors(results, grpc=from_grpc(request), nan=nan)
    return Reply(dumps({**_identity(request, model), "outputs": _requested(outputs, request)}))


def encode_error(error: ReplyError, request: Request, model: ModelIdentity) -> Reply:
    """Encode an error for the client. Never raises, whatever the error contains."""
    try:
        return _encode_error(error, request, model)
    except Exception:
        return _encode_error(ReplyError("the error itself could not be serialised"), request, ModelIdentity("", ""))


def _encode_error(error: ReplyError, request: Request, model: ModelIdentity) -> Reply:
    status = error.status if type(error.status) is int and 400 <= error.status <= 599 else 500
    phrase = error.phrase if error.phrase.isascii() and error.phrase.isprintable() else "Error"
    facts = {"status": status, "code": _printable(error.code), "message": _printable(error.message)}
    if error.expected is not None:
        facts["expected"] = _printable(error.expected)
    if error.stage is not None:
        facts["stage"] = _printable(error.stage)
    protocol = _protocol(request)
    if protocol == "plain":
        return Reply(dumps({"error": facts}), status, phrase)
    text = facts["message"] if error.expected is None else f"{facts['message']}; expected: {facts['expected']}"
    if protocol == "kserve-v1":
        return Reply(dumps({"error": text}), status, phrase)
    data = facts if from_grpc(request) else dumps(facts).decode()
    output = {"name": "error", "datatype": "BYTES", "shape": [1], "data": [data]}
    return Reply(dumps({"error": text, **_identity(request, model), "outputs": [output]}), status, phrase)


def _protocol(request: Request) -> Protocol:
    """Return the protocol of the request, even before decoding: gRPC needs a matching reply from every stage."""
    if request.protocol == "plain":
        body = request.fields.get("body")
        if isinstance(body, dict) and is_open_inference(body):
            return "open-inference"
    return request.protocol


def _identity(request: Request, model: ModelIdentity) -> dict[str, str]:
    body = request.fields.get("body")
    client_id = request.client_id or (body.get("id") if isinstance(body, dict) else None)
    return {
        "id": _printable(client_id or request.id),
        "model_name": _printable(model.name),
        "model_version": _printable(model.version),
    }


def _requested(outputs: list[dict[str, Any]], request: Request) -> list[dict[str, Any]]:
    """Return the outputs that an Open Inference body asks for, in its order; all if it names none."""
    body = next((value for value in request.fields.values() if isinstance(value, dict) and "inputs" in value), {})
    wanted = body.get("outputs")
    if not wanted:
        return outputs
    found = {output["name"]: output for output in outputs}
    try:
        return [found[entry["name"]] for entry in wanted]
    except (KeyError, TypeError):
        message = "the request asks for outputs that do not exist"
        raise BadRequest(message, expected=f'"outputs" of {{"name": ...}} out of {", ".join(found)}') from None


def _printable(value: Any) -> str:
    """Convert ``value`` to valid UTF-8 text of at most :data:`MAX_MESSAGE` characters."""
    text = str(value)
    if len(text) > MAX_MESSAGE:
        text = text[: MAX_MESSAGE - 1] + "…"
    return text.encode("utf-8", "replace").decode()
