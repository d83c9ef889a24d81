"""All errors of tsbatch, and who reads them.

::

    TsbatchError
    ├── RequestError              read by the client: a JSON body with the status below
    │   ├── BadRequest            400  cannot be read, or lacks what is needed
    │   ├── PayloadTooLarge       413  exceeds a documented limit
    │   ├── UnsupportedMedia      415  a content type or encoding that the handler does not support
    │   ├── Unprocessable         422  readable, but not what the task needs
    │   └── NotSupported          501  a feature that this handler or model does not have
    ├── HandlerError              read by the client too, but the fault is on the server
    │   ├── StageFailed           500  an exception in the code of the handler, with its stage
    │   ├── ContractBroken        500  a stage returned the wrong type or number
    │   ├── AnswerTooLarge        500  the answer exceeds max_response_size
    │   ├── NotTried              503  isolation ran out of its time budget
    │   └── OutOfMemory           507  the input does not fit even alone
    ├── LoadError                 read by the operator in the worker's log: file, cause, remedy
    │   └── SettingsError         a key or value under ``tsbatch:`` or ``handler:`` is wrong
    ├── UsageError                read by the user of the command line; exit code 2
    └── ServerError               read by the user of the command line; exit code 3
        └── LoadFailed            a model's workers cannot load

The status, the machine-readable code and the reason phrase are class attributes: mapping an error to
HTTP is data, not a ladder of ``if``. The reason phrase is fixed ASCII (TorchServe writes its length in
characters and its body in bytes, so anything else breaks the frame: ts/protocol/otf_message_handler.py).
"""

from __future__ import annotations

from typing import ClassVar

STOPS = (KeyboardInterrupt, GeneratorExit)
"""Exceptions that also stop the caller. Anything else that a stage raises is an error of its request: also SystemExit
and other exceptions outside ``Exception`` (the PanicException of a tokenizer, CancelledError)."""


class TsbatchError(Exception):
    """Base class of everything that tsbatch raises deliberately."""


class ReplyError(TsbatchError):
    """An error that becomes the answer to one request; the client sees its message.

    Args:
        message: what is wrong, in one sentence.
        expected: what would be right; goes into the body next to the message.
        stage: the stage in which it happened; the loop fills it in by default.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    phrase: ClassVar[str] = "Internal Server Error"
    # Defaults for a subclass whose __init__ does not call this one.
    message: str = ""
    expected: str | None = None
    stage: str | None = None

    def __init__(self, message: str, *, expected: str | None = None, stage: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.expected = expected
        self.stage = stage


class RequestError(ReplyError):
    """The request was wrong. Raise one of these in any stage to answer with a 4xx."""

    status = 400
    code = "bad_request"
    phrase = "Bad Request"


class BadRequest(RequestError):
    """400: the request cannot be read, or lacks what is needed."""


class PayloadTooLarge(RequestError):
    """413: over a limit that the message states."""

    status = 413
    code = "payload_too_large"
    phrase = "Payload Too Large"


class UnsupportedMedia(RequestError):
    """415: a content type or encoding this handler does not take."""

    status = 415
    code = "unsupported_media"
    phrase = "Unsupported Media Type"


class Unprocessable(RequestError):
    """422: it was read, but is not what the task needs."""

    status = 422
    code = "unprocessable"
    phrase = "Unprocessable Entity"


class NotSupported(RequestError):
    """501: asks for something this handler or model cannot do."""

    status = 501
    code = "not_supported"
    phrase = "Not Implemented"


class HandlerError(ReplyError):
    """The fault is the handler's or the machine's, not the client's."""


class StageFailed(HandlerError):
    """500: the handler's own code raised; the message names the exception."""

    code = "handler_failed"


class ContractBroken(HandlerError):
    """500: a stage returned the wrong type or the wrong number of things."""

    code = "contract_broken"


class AnswerTooLarge(HandlerError):
    """500: the encoded answer is over the server's max_response_size."""

    code = "answer_too_large"


class NotTried(HandlerError):
    """503: the time for finding the guilty request of a failed batch was used up."""

    status = 503
    code = "not_tried"
    phrase = "Service Unavailable"


class OutOfMemory(HandlerError):
    """507: the input does not fit into memory even alone."""

    status = 507
    code = "out_of_memory"
    phrase = "Insufficient Storage"


class LoadError(TsbatchError):
    """The worker cannot load; one line with file, cause and remedy."""


class SettingsError(LoadError):
    """A setting under ``tsbatch:`` or ``handler:`` is wrong, or breaks batching."""


class UsageError(TsbatchError):
    """Wrong usage or bad input at the command line (exit code 2)."""


class ServerError(TsbatchError):
    """The server or one of its workers failed, or cannot be reached (exit code 3)."""


class LoadFailed(ServerError):
    """A model's workers cannot load: the cause first, then what to do.

    Args:
        who: the model and its version.
        cause: why, in one line.
        remedy: what to do; None if the cause is unknown.
        timeout: the startupTimeout in seconds, if the load took longer than that.
    """

    def __init__(self, who: str, cause: str, remedy: str | None = None, *, timeout: int | None = None) -> None:
        self.who, self.cause, self.remedy, self.timeout = who, cause, remedy, timeout
        super().__init__(f"the model {who} cannot load: {cause}" + (f"; {remedy}" if remedy else ""))


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message, and the next one as long as a line ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = next((index for index, line in enumerate(lines) if not line.endswith(":")), len(lines))
    return " ".join(lines[: last + 1]) or "no reason given"


def first_line(error: BaseException) -> str:
    """Return an error's type and message in one line."""
    return f"{type(error).__name__}: {reason_of(error)}"
