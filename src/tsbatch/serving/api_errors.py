"""What TorchServe's answers mean where their status alone does not say it."""

from __future__ import annotations

import httpx

STUMBLES = frozenset({"ConcurrentModificationException", "NullPointerException"})
"""What TorchServe answers when a worker comes or goes in the middle of a call; asked again it is fine.

Its lists of workers are changed by the workers' threads and walked through without a lock
(frontend/server/.../wlm/WorkLoadManager.java).
"""


def is_token_error(answer: httpx.Response) -> bool:
    """Whether the server refused the token, which it does with a 400."""
    return answer.status_code == httpx.codes.BAD_REQUEST and "InvalidKeyException" in answer.text


def is_stumble(answer: httpx.Response) -> bool:
    """Whether TorchServe tripped over its own threads, which says nothing about what it was asked."""
    try:
        return answer.is_server_error and answer.json()["type"] in STUMBLES
    except (ValueError, KeyError, TypeError):
        return False


def message_of(answer: httpx.Response) -> str:
    """What an error answer ``{"code", "type", "message"}`` says, on one line; its type where it says nothing."""
    try:
        told = answer.json()
        said = told.get("message") or told["type"]
    except (ValueError, KeyError, AttributeError):
        said = answer.text
    return " ".join(str(said).split()) or f"the server answered {answer.status_code}"
