"""Interpret TorchServe's error responses, whose status alone is ambiguous."""

from __future__ import annotations

import httpx

RACES = frozenset({"ConcurrentModificationException", "NullPointerException"})
"""Errors of calls during which a worker starts or ends; a second try works.

TorchServe iterates over its lists of workers without a lock while the workers' threads change them
(frontend/server/.../wlm/WorkLoadManager.java).
"""


def is_token_error(answer: httpx.Response) -> bool:
    """Whether the server rejected the token, which it does with status 400."""
    return answer.status_code == httpx.codes.BAD_REQUEST and "InvalidKeyException" in answer.text


def is_race(answer: httpx.Response) -> bool:
    """Whether the call failed only because TorchServe's own threads collided."""
    try:
        return answer.is_server_error and answer.json()["type"] in RACES
    except (ValueError, KeyError, TypeError):
        return False


def message_of(answer: httpx.Response) -> str:
    """Return the message of an error response ``{"code", "type", "message"}`` on one line, or its type if empty."""
    try:
        error = answer.json()
        message = error.get("message") or error["type"]
    except (ValueError, KeyError, AttributeError):
        message = answer.text
    return " ".join(str(message).split()) or f"the server answered with status {answer.status_code}"
