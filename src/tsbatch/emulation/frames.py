"""TorchServe's message frames from the view of the frontend: encode requests, decode the responses of a worker.

::

    batch     'I' request* -1
    request   id  (name value)* -1  (name content-type value)* -1
    response  code message  prediction* -1
    prediction  id content-type status phrase  n (name value)*n  body

Every text and value is a big-endian int32 length followed by that many bytes. Sources:
``ts/protocol/otf_message_handler.py`` (the worker) and ``util/codec/{ModelRequestEncoder,ModelResponseDecoder,
CodecUtils}.java``, ``wlm/BatchAggregator.java`` and ``job/RestJob.java`` (the frontend). Anything that the frontend
cannot handle is :class:`WorkerDied` here: there, it waits for the response timeout or closes the connection, and kills
the worker.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import orjson

from tsbatch.errors import TsbatchError
from tsbatch.protocol.request import Headers
from tsbatch.settings import MAX_RESPONSE_SIZE

_NUMBER = struct.Struct("!i")
_END = _NUMBER.pack(-1)
_MAX_HEADER = 6_500_000
"""CodecUtils.readMap's own limit for one header name or value, whatever max_response_size is."""

_BAD_NAME = re.compile(r"[\x00\t\n\x0b\f\r ,:;=]|[^\x00-\x7f]")
_BAD_VALUE = re.compile(r"[\x00\x0b\f\r\n]")
"""Values that Netty's header validation rejects. It accepts folded lines, which RFC 9112, 5.2, forbids to send."""


class WorkerDied(TsbatchError):
    """TorchServe would kill this worker, and every client of the batch would get 500 "Worker died."."""


@dataclass(frozen=True, slots=True)
class Part:
    """One named value of a request: the field ``body`` of a raw request, or a field of a form."""

    name: str
    value: bytes
    content_type: str = ""


@dataclass(frozen=True, slots=True)
class WireRequest:
    """One request as the frontend passes it to a worker."""

    id: str
    headers: Mapping[str, str]
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The part of a response frame for one request, as the worker wrote it."""

    request_id: str
    content_type: str
    status: int
    phrase: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """A response frame. A ``code`` other than 200 applies to every request; the predictions are then ignored."""

    code: int
    message: str
    predictions: Sequence[Prediction]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that one client gets.

    Attributes:
        request_id: the id of the request.
        status: the HTTP status.
        phrase: the reason phrase, often empty.
        headers: the headers of the worker, case-insensitive; without those of the frontend.
        content_type: the content type; empty if the worker set none.
        body: the bytes of the body.
        failed_whole_batch: whether the worker failed all requests of the batch at once, including valid ones.
    """

    request_id: str
    status: int
    phrase: str
    body: bytes
    content_type: str = ""
    headers: Headers = field(default_factory=Headers)
    failed_whole_batch: bool = False

    @property
    def ok(self) -> bool:
        """Whether the status is a 2xx."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body decoded as UTF-8, with invalid bytes replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Parse the body like a strict client (``NaN`` is not JSON).

        Raises:
            ValueError: the body is not JSON; the message shows how it starts.
        """
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"the body is not JSON ({error}); it starts with {self.text[:80]!r}") from None


def encode_batch(requests: Iterable[WireRequest]) -> bytes:
    """Encode the frame of a batch (ModelRequestEncoder.encode)."""
    frame = [b"I"]
    for request in requests:
        frame.append(_sized(request.id.encode()))
        for name, value in request.headers.items():
            frame += (_sized(name.encode()), _sized(value.encode()))
        frame.append(_END)
        for part in request.parts:
            frame += (_sized(part.name.encode()), _sized(part.content_type.encode()), _sized(part.value))
        frame.append(_END)
    return b"".join([*frame, _END])


def _sized(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


def decode_response(frame: bytes | bytearray, *, max_response_size: int = MAX_RESPONSE_SIZE) -> Response:
    """Decode the response frame of a worker (ModelResponseDecoder.decode).

    Args:
        frame: everything the worker wrote for one batch.
        max_response_size: the limit of the server in bytes, for each body rather than their sum.

    Raises:
        WorkerDied: a length exceeds the limit, there are too few or too many bytes, or text is not UTF-8.
    """
    reader = _Reader(frame, max_response_size)
    code = reader.number()
    message = reader.text("the message")
    predictions = []
    while (length := reader.number()) != -1:
        predictions.append(_decode_prediction(reader, length))
    reader.finish()
    return Response(code, message, predictions)


def _decode_prediction(reader: _Reader, id_length: int) -> Prediction:
    request_id = reader.text("a request's id", id_length)
    content_type = reader.text("the content type")
    status = reader.number()
    phrase = reader.text("the reason phrase")
    headers = {}
    for _ in range(reader.number()):
        name = reader.text("a header's name", limit=_MAX_HEADER)
        headers[name] = reader.text(f"the header {name}", limit=_MAX_HEADER)
    return Prediction(request_id, content_type, status, phrase, headers, reader.bytes("the body"))


class _Reader:
    def __init__(self, frame: bytes | bytearray, limit: int) -> None:
        self._frame = memoryview(frame)
        self._size = len(frame)
        self._limit = limit
        self._at = 0

    def number(self) -> int:
        if self._at + 4 > self._size:
            raise self._desynchronised("a length")
        value: int = _NUMBER.unpack_from(self._frame, self._at)[0]
        self._at += 4
        return value

    def bytes(self, what: str, length: int | None = None, *, limit: int | None = None) -> bytes:
        length = self.number() if length is None else length
        limit = self._limit if limit is None else limit
        # A length past the end means a broken frame rather than a long answer, even if Java reports the latter.
        if length < 0 or self._at + length > self._size:
            raise self._desynchronised(what)
        if length > limit:
            raise WorkerDied(
                f"{what} has {length} bytes, but TorchServe accepts {limit}: it kills the worker and fails the batch; "
                "send a smaller answer, or increase max_response_size in config.properties"
            )
        self._at += length
        return bytes(self._frame[self._at - length : self._at])

    def text(self, what: str, length: int | None = None, *, limit: int | None = None) -> str:
        # Java replaces invalid UTF-8, so what it shows is not what was sent.
        return self.bytes(what, length, limit=limit).decode("utf-8", "replace")

    def finish(self) -> None:
        if self._at != len(self._frame):
            raise self._desynchronised("the end of the frame")

    def _desynchronised(self, what: str) -> WorkerDied:
        return WorkerDied(
            f"the response frame is out of step at byte {self._at} of {len(self._frame)}, where {what} should be: "
            "TorchServe kills the worker, at once or after the response timeout; "
            "a reason phrase or content type that is not ASCII causes this"
        )


def read_answers(
    frames: Sequence[bytes | bytearray], ids: Sequence[str], *, max_response_size: int = MAX_RESPONSE_SIZE
) -> list[Answer]:
    """Return the answers that the clients of one batch get.

    Args:
        frames: the response frames of the worker: one, or several for a stream.
        ids: the ids of the requests, in the order of the returned answers.
        max_response_size: the limit of the server in bytes.

    Raises:
        WorkerDied: the frontend rejects a frame, cannot send an answer, or a request has no answer.
    """
    answers: dict[str, Answer] = {}
    for frame in frames:
        response = decode_response(frame, max_response_size=max_response_size)
        for answer in _answers_of(response, ids):
            first = answers.get(answer.request_id)
            # Of the later frames of a stream, only the body is forwarded.
            answers[answer.request_id] = replace(first, body=first.body + answer.body) if first else answer
    missing = [name for name in ids if name not in answers]
    if missing:
        raise WorkerDied(f"the worker answered {len(answers)} of {len(ids)} requests; the others would wait forever")
    return [answers[name] for name in ids]


def _answers_of(response: Response, ids: Sequence[str]) -> list[Answer]:
    if response.code != 200:
        return failed_batch(ids, response.code, response.message)
    known = set(ids)
    for prediction in response.predictions:
        if prediction.request_id not in known:
            raise WorkerDied(f"the worker answered a request that is not in the batch: {prediction.request_id!r}")
    return [_answer_of(prediction) for prediction in response.predictions]


def _answer_of(prediction: Prediction) -> Answer:
    _check(prediction)
    headers = {"content-type": prediction.content_type} if prediction.content_type else {}
    # Netty writes header values as Latin-1, with a question mark for the rest.
    for name, value in prediction.headers.items():
        headers[name] = value if value.isascii() else value.encode("latin-1", "replace").decode("latin-1")
    seen = Headers(headers)
    return Answer(
        prediction.request_id,
        prediction.status,
        prediction.phrase,
        prediction.body,
        content_type=seen.get("content-type", ""),
        headers=seen,
    )


def _check(prediction: Prediction) -> None:
    wrong = None
    if prediction.status < 0:
        wrong = f"the status {prediction.status}"
    elif re.search("[\r\n]", prediction.phrase):
        wrong = "a line break in the reason phrase"
    for name, value in [("content-type", prediction.content_type), *prediction.headers.items()]:
        if not name or _BAD_NAME.search(name):
            wrong = f"the header name {name!r}"
        elif not value.isprintable() and _BAD_VALUE.search(value):
            wrong = f"a line break or control character in the value of the header {name}"
    if wrong:
        raise WorkerDied(f"TorchServe cannot send {wrong}; it kills the worker and fails the whole batch")


def failed_batch(ids: Iterable[str], code: int, message: str) -> list[Answer]:
    """Return the answers of a batch that failed as a whole (RestJob.sendError)."""
    status = 507 if code == 413 else code
    body = {"code": status, "type": "InternalServerException", "message": message}
    text = (json.dumps(body, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "replace")
    known = status in {member.value for member in HTTPStatus}
    phrase = HTTPStatus(status).phrase if known else f"Unknown Status ({status})"
    headers = Headers({"content-type": "application/json"})
    return [Answer(name, status, phrase, text, "application/json", headers, failed_whole_batch=True) for name in ids]
