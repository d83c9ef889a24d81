"""Every error of tsbatch, and who reads it.

::

    TsbatchError
    ├── RequestError              the client reads it: a JSON body with the status below
    │   ├── BadRequest            400  cannot be read, or lacks what is needed
    │   ├── PayloadTooLarge       413  over a stated limit
    │   ├── UnsupportedMedia      415  a content type or encoding the handler does not take
    │   ├── Unprocessable         422  was read, but is not what the task needs
    │   └── NotSupported          501  asks for something this handler or model cannot do
    ├── HandlerError              the client reads it too, the fault is on our side
    │   ├── StageFailed           500  an exception of the handler's own code, with its stage
    │   ├── ContractBroken        500  a stage returned the wrong type or number
    │   ├── AnswerTooLarge        500  an answer over max_response_size
    │   ├── NotTried              503  isolation ran out of its time budget
    │   └── OutOfMemory           507  even alone the input does not fit
    ├── LoadError                 the operator reads it in the worker's log: file, cause, remedy
    │   └── SettingsError         a key or value under ``tsbatch:`` or ``handler:`` is wrong
    ├── UsageError                the person at the command line reads it; exit code 2
    └── ServerError               likewise; exit code 3
        └── LoadFailed            a model's workers cannot load

The status, the machine-readable code and the reason phrase are class attributes: mapping an error to
HTTP is data, not a ladder of ``if``. The reason phrase is fixed ASCII (TorchServe writes its length in
characters and its body in bytes, so anything else breaks the frame: ts/protocol/otf_message_handler.py).
"""

from __future__ import annotations

from typing import ClassVar

STOPS = (KeyboardInterrupt, GeneratorExit)
"""What ends the caller too. Anything else that a stage raises is its request's error: SystemExit, and what Rust and
asyncio raise past ``Exception`` (the PanicException of a tokenizer, CancelledError)."""


class TsbatchError(Exception):
    """Base of everything tsbatch raises on purpose."""


class ReplyError(TsbatchError):
    """An error that becomes one request's answer; its message reaches the client.

    Args:
        message: what was wrong, in one sentence.
        expected: what would have been right; goes into the body beside the message.
        stage: the stage it happened in; filled in by the loop when left out.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal"
    phrase: ClassVar[str] = "Internal Server Error"
    # Here too, for a subclass whose own __init__ does not call ours.
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
        remedy: what to do; None when the cause is not a known one.
        timeout: the startupTimeout, in seconds, when the load took longer than that.
    """

    def __init__(self, who: str, cause: str, remedy: str | None = None, *, timeout: int | None = None) -> None:
        self.who, self.cause, self.remedy, self.timeout = who, cause, remedy, timeout
        super().__init__(f"the model {who} cannot load: {cause}" + (f"; {remedy}" if remedy else ""))
