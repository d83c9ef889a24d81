"""Run example batches through the loop before the worker reports READY.

The first forward passes of a process are slow (lazy initialisation, memory pools, kernel selection by shape). Clients
should not pay for them, and a model that cannot answer its own examples should not go into service.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

from tsbatch.contract import Stages
from tsbatch.errors import LoadError
from tsbatch.protocol.reply import Reply
from tsbatch.protocol.request import Request

logger = logging.getLogger("tsbatch")
SECONDS = 0.5
"""The total time for larger batches; for a big model, a longer warm-up would cost more than it saves."""


def warm_up(handler: Stages) -> None:
    """Answer the examples of the handler: one alone, then batches of doubling size while there is time.

    Raises:
        LoadError: an example was not answered.
    """
    examples = list(handler.examples())
    if not examples:
        logger.info("no warm-up: %s has no examples()", type(handler).__name__)
        return
    size, first = 1, _answer(handler, examples[:1])
    # The first pass includes initialisation, so it predicts no other pass, unless the proof of the batching ran before.
    proven = handler.choice.mode == "packed" or handler.choice.difference is not None
    spent, last = 0.0, first if proven else 0.0
    while size < handler.batch_size and spent + 2 * last < SECONDS:
        size = min(2 * size, handler.batch_size)
        last = _answer(handler, list(itertools.islice(itertools.cycle(examples), size)))
        spent += last
    logger.info("warm-up: batches of up to %d in %.2f s", size, first + spent)


def _answer(handler: Stages, values: Sequence[Any]) -> float:
    """Answer the values in one batch; return the seconds it took."""
    started = time.perf_counter()
    for reply in handler.answer([_as_request(value) for value in values]):
        if reply.status != 200:
            raise LoadError(f"the warm-up example was answered with {reply.status}: {_message(reply)}")
    return time.perf_counter() - started


def _message(reply: Reply) -> str:
    """Return what was wrong in one line, or the whole body if the handler has its own error format."""
    try:
        error = json.loads(reply.body)["error"]
        stage = f"{error['stage']}: " if error["status"] < 500 else ""  # messages of 500s start with it
        text = stage + error["message"] + (f"; expected {error['expected']}" if "expected" in error else "")
    except (ValueError, LookupError, TypeError, AttributeError):
        text = reply.body.decode(errors="replace")
    return " ".join(str(text).split())


def _as_request(value: Any) -> Request:
    if isinstance(value, bytes):
        return Request(fields={"body": value}, content_types={"body": "application/octet-stream"})
    return Request.of({"inputs": value})
