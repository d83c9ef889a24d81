"""Run example batches through the loop before the worker says READY.

The first forward passes of a process are slow (lazy initialisation, memory pools, kernels chosen by shape); a
client should not pay for them, and a model that cannot answer its own examples should not go into service.
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
"""Larger batches get so much time together: a big model's warm-up would cost more than it saves."""


def warm_up(handler: Stages) -> None:
    """Answer the handler's examples: one alone, then batches that double up to a full one, while there is time.

    Raises:
        LoadError: an example was not answered.
    """
    examples = list(handler.examples())
    if not examples:
        logger.info("no warm-up: %s has no examples()", type(handler).__name__)
        return
    size, first = 1, _answer(handler, examples[:1])
    # The first pass initialises, so it says nothing of the next one's time; unless the proof of packing came before.
    spent, last = 0.0, first if handler.choice.mode == "packed" else 0.0
    while size < handler.batch_size and spent + 2 * last < SECONDS:
        size = min(2 * size, handler.batch_size)
        last = _answer(handler, list(itertools.islice(itertools.cycle(examples), size)))
        spent += last
    logger.info("warm-up: batches of up to %d in %.2f s", size, first + spent)


def _answer(handler: Stages, values: Sequence[Any]) -> float:
    """Answer these in one batch; the seconds that it took."""
    started = time.perf_counter()
    for reply in handler.answer([_as_request(value) for value in values]):
        if reply.status != 200:
            raise LoadError(f"the warm-up's example was answered with {reply.status}: {_message(reply)}")
    return time.perf_counter() - started


def _message(reply: Reply) -> str:
    """What was wrong, in one line; the whole body of a handler that writes errors in its own way."""
    try:
        error = json.loads(reply.body)["error"]
        stage = f"{error['stage']}: " if error["status"] < 500 else ""  # 500s begin with it
        told = stage + error["message"] + (f"; expected {error['expected']}" if "expected" in error else "")
    except (ValueError, LookupError, TypeError, AttributeError):
        told = reply.body.decode(errors="replace")
    return " ".join(str(told).split())


def _as_request(value: Any) -> Request:
    if isinstance(value, bytes):
        return Request(fields={"body": value}, content_types={"body": "application/octet-stream"})
    return Request.of({"inputs": value})
