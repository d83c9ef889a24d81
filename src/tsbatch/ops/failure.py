"""What goes wrong with a server, told to the person at the command line."""

from __future__ import annotations

from tsbatch.errors import TsbatchError


class ServerError(TsbatchError):
    """The server or one of its workers failed, or cannot be reached (exit code 3)."""
