"""TorchServe's tokens: read from its key file, renewed before they expire.

TorchServe writes ``key_file.json`` into its working folder::

    {"management": {"key": …, "expiration time": "2026-01-01T00:00:00.123456789Z"},
     "inference": {"key": …, "expiration time": …}, "API": {"key": …}}

``GET /token?type=inference|management`` on the management port, with the API key, makes a new token and
writes the file anew; the token before it is worth nothing from then on
(frontend/server/.../util/TokenAuthorization.java). Who sends requests therefore reads the token when it
sends; for curl each token also lies in a file that ``curl -H @FILE`` takes.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx

from tsbatch.errors import ServerError
from tsbatch.system.state_directory import write_private

TokenType = Literal["inference", "management"]
TYPES: tuple[TokenType, ...] = ("inference", "management")

KEY_FILE = "key_file.json"
RENEW_WHEN_LEFT = 0.25
"""A token is renewed when this share of its lifetime is left."""


class TokenSource(Protocol):
    """Where a client gets the token for its next request."""

    def token(self, kind: TokenType) -> str | None:
        """The token that holds now; None when the server asks for none."""


@dataclass(frozen=True, slots=True)
class FixedToken:
    """The token a person gave, for a server that others started."""

    value: str | None

    def token(self, kind: TokenType) -> str | None:
        """The token, whatever it is for."""
        del kind
        return self.value


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The tokens of a server that we started.

    Attributes:
        folder: TorchServe's working folder, which only its owner can enter.
        management_address: where new tokens are asked for.
        lifetime: seconds a token lives.
    """

    folder: Path
    management_address: str
    lifetime: float

    def token(self, kind: TokenType) -> str | None:
        """The token that holds now; None when the server has no key file.

        Raises:
            ServerError: when the key file cannot be read.
        """
        return str(self._read()[kind]["key"]) if self.path.exists() else None

    @property
    def path(self) -> Path:
        """The file that TorchServe writes."""
        return self.folder / KEY_FILE

    def header_file(self, kind: TokenType) -> Path:
        """A file that holds the whole ``Authorization`` header, for ``curl -H @FILE``."""
        return self.folder / f"{kind}.header"

    def renew(self) -> None:
        """Renew the tokens that are due, and write the header files when a token changed.

        Raises:
            ServerError: when the server does not hand out a new token.
        """
        if not self.path.exists():
            return
        for kind in TYPES:
            if self.seconds_left(kind) < self.lifetime * RENEW_WHEN_LEFT:
                self._ask_for_new(kind)
            self._write_header(kind)

    def seconds_left(self, kind: TokenType) -> float:
        """How long the token still holds, in seconds; negative when it has expired."""
        return expiry(self._read()[kind]["expiration time"]) - time.time()

    def _ask_for_new(self, kind: TokenType) -> None:
        headers = {"Authorization": f"Bearer {self._read()['API']['key']}"}
        try:
            answer = httpx.get(
                f"{self.management_address}/token",
                params={"type": kind},
                headers=headers,
                timeout=10,
                trust_env=False,
                verify=False,  # noqa: S501 - the server is our own child on this machine
            )
        except httpx.HTTPError as error:
            raise ServerError(f"cannot renew the {kind} token at {self.management_address}: {error}") from error
        if answer.status_code != httpx.codes.OK:
            raise ServerError(f"cannot renew the {kind} token: the server answered {answer.status_code}")

    def _write_header(self, kind: TokenType) -> None:
        line = f"Authorization: Bearer {self.token(kind)}\n"
        path = self.header_file(kind)
        if path.exists() and path.read_text(encoding="utf-8") == line:
            return
        write_private(path, line)

    def _read(self) -> dict[str, Any]:
        # TorchServe writes the file in place, so a reader may meet half of it.
        for _ in range(20):
            with contextlib.suppress(OSError, json.JSONDecodeError):
                keys: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
                return keys
            time.sleep(0.05)
        raise ServerError(f"cannot read the token file {self.path}")


def expiry(text: str) -> float:
    """Seconds since the epoch of a time that Java wrote, with up to nine digits after the point.

    Years above 9999, which Java writes with a plus sign, count as never.
    """
    if text.startswith("+"):
        return float("inf")
    whole, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()
    return moment + float(f"0.{fraction or 0}")
