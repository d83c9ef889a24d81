"""What goes wrong with a server, told to the person at the command line."""

from __future__ import annotations

from tsbatch.errors import TsbatchError


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
