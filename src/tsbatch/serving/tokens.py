"""Read TorchServe's tokens from its key file and renew them before they expire.

TorchServe writes ``key_file.json`` into its working folder::

    {"management": {"key": …, "expiration time": "2026-01-01T00:00:00.123456789Z"},
     "inference": {"key": …, "expiration time": …}, "API": {"key": …}}

``GET /token?type=inference|management`` on the management port, with the API key, makes a new token, writes the file
again and revokes the old token (frontend/server/.../util/TokenAuthorization.java). A client therefore reads the token
for each request. For curl, each token is also in a file for ``curl -H @FILE``.
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
from tsbatch.system.polling import wait_until
from tsbatch.system.state_directory import write_private

TokenType = Literal["inference", "management"]
TYPES: tuple[TokenType, ...] = ("inference", "management")

KEY_FILE = "key_file.json"
RENEW_WHEN_LEFT = 0.25
"""Remaining share of its lifetime at which a token is renewed."""


class TokenSource(Protocol):
    """A source of tokens, which a client asks before each request."""

    def token(self, kind: TokenType) -> str | None:
        """Return the valid token; None if the server needs none."""


@dataclass(frozen=True, slots=True)
class FixedToken:
    """A token given by the user, for a server that tsbatch did not start."""

    value: str | None

    def token(self, kind: TokenType) -> str | None:
        """Return the token, whatever it is for."""
        del kind
        return self.value


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The tokens of a server that tsbatch started.

    Attributes:
        folder: TorchServe's working folder, which only its owner can enter.
        management_address: address that issues new tokens.
        lifetime: seconds until a token expires.
    """

    folder: Path
    management_address: str
    lifetime: float

    def token(self, kind: TokenType) -> str | None:
        """Return the valid token; None if the server has no key file.

        Raises:
            ServerError: the key file cannot be read.
        """
        return str(self._read()[kind]["key"]) if self.path.exists() else None

    @property
    def path(self) -> Path:
        """The file that TorchServe writes."""
        return self.folder / KEY_FILE

    def header_file(self, kind: TokenType) -> Path:
        """Return the path of the file with the ``Authorization`` header, for ``curl -H @FILE``."""
        return self.folder / f"{kind}.header"

    def renew(self) -> None:
        """Renew the tokens that are about to expire, and write the header files of changed tokens.

        Raises:
            ServerError: the server does not issue a new token.
        """
        if not self.path.exists():
            return
        for kind in TYPES:
            if self.seconds_left(kind) < self.lifetime * RENEW_WHEN_LEFT:
                self._request_new(kind)
            path, line = self.header_file(kind), f"Authorization: Bearer {self.token(kind)}\n"
            if not path.exists() or path.read_text(encoding="utf-8") != line:
                write_private(path, line)

    def seconds_left(self, kind: TokenType) -> float:
        """Return the seconds until the token expires; negative if it has expired."""
        return expiry(self._read()[kind]["expiration time"]) - time.time()

    def _request_new(self, kind: TokenType) -> None:
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
            raise ServerError(f"cannot renew the {kind} token: the server answered with status {answer.status_code}")

    def _read(self) -> dict[str, Any]:
        # TorchServe writes the file in place, so a read may return half of it.
        if keys := wait_until(self._read_once, seconds=1, interval=0.05):
            return keys
        raise ServerError(f"cannot read the token file {self.path}")

    def _read_once(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, json.JSONDecodeError):
            return dict(json.loads(self.path.read_text(encoding="utf-8")))
        return None


def expiry(text: str) -> float:
    """Convert a time that Java wrote, with up to nine decimals, to seconds since the epoch.

    A year above 9999, which Java writes with a plus sign, means never.
    """
    if text.startswith("+"):
        return float("inf")
    whole, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp()
    return moment + float(f"0.{fraction or 0}")
