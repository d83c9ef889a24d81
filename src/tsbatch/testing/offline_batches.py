"""Run a file of requests through a handler: one line in, one line out, in order, in constant memory."""

from __future__ import annotations

import base64
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO

import orjson

from tsbatch.emulation.frames import failed_batch
from tsbatch.emulation.runner import Answer, Call, HandlerRunner, WorkerDied
from tsbatch.system import console

JSON_LINE, TEXT_LINE = "application/json", "text/plain"


@dataclass(slots=True)
class Tally:
    """The outcome of the requests.

    Attributes:
        statuses: number of answers by HTTP status.
        batches: number of batches.
        seconds: time from the first batch to the last answer.
        reasons: why batches killed the worker, each reason once.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    batches: int = 0
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """The number of answered requests."""
        return self.statuses.total()

    @property
    def failed(self) -> dict[int, int]:
        """Number of failed requests by status."""
        return {status: number for status, number in sorted(self.statuses.items()) if not 200 <= status < 300}

    @property
    def rate(self) -> float:
        """Requests per second; 0 if there were none."""
        return self.requests / self.seconds if self.requests else 0.0


def run_lines(
    runner: HandlerRunner, source: BinaryIO, sink: BinaryIO, tally: Tally, *, content_type: str, step: console.Step
) -> None:
    """Write the answer to every line of ``source`` to ``sink``, one batch at a time.

    Args:
        runner: the handler; its ``batch_size`` is the number of lines in a batch.
        source: one request body per line.
        sink: gets one ``{"index", "status", "body"}`` per line, flushed after every batch.
        tally: updated after every batch, so that it is correct even after an interruption.
        content_type: the content type of the requests.
        step: advanced by the number of bytes read.
    """
    began = time.perf_counter()
    for lines in _batches(source, runner.batch_size):
        answers = _ask(runner, [Call(line.rstrip(b"\r\n"), content_type) for line in lines], tally)
        sink.write(b"".join(_line(tally.requests + position, answer) for position, answer in enumerate(answers)))
        sink.flush()
        tally.statuses.update(answer.status for answer in answers)
        tally.batches += 1
        tally.seconds = time.perf_counter() - began
        step.advance(sum(map(len, lines)))


def _batches(source: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    lines = iter(source)
    while batch := list(islice(lines, size)):
        yield batch


def _ask(runner: HandlerRunner, calls: list[Call], tally: Tally) -> list[Answer]:
    try:
        return runner.predict(calls)
    except WorkerDied as error:
        reason = str(error)
        if reason not in tally.reasons:
            tally.reasons.append(reason)
            console.say(f"the worker would have died: {reason}")
        # A server would start a new worker and continue; so does this function.
        return failed_batch([""] * len(calls), 500, "Worker died.")


def _line(index: int, answer: Answer) -> bytes:
    line = {"index": index, "status": answer.status, "body": _body(answer)}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _body(answer: Answer) -> Any:
    if not answer.content_type or "json" in answer.content_type:
        try:
            value = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            pass
        else:
            # Keep the original text if it is a single line, so that no digit of a number changes.
            return value if b"\n" in answer.body else orjson.Fragment(answer.body)
    try:
        return answer.body.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(answer.body).decode()}


@contextmanager
def remarks() -> Iterator[None]:
    """Show warnings and errors that the handler and TorchServe log, each kind of message once."""
    root, shown = logging.getLogger(), _Remarks(logging.WARNING)
    root.addHandler(shown)
    try:
        yield
    finally:
        root.removeHandler(shown)


class _Remarks(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._seen: set[tuple[str, int, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        kind = (record.pathname, record.lineno, error)
        # TorchServe logs a traceback for every body that is not JSON; the answer to the request reports that.
        if record.funcName == "_retrieve_input_data" or kind in self._seen:
            return
        self._seen.add(kind)
        console.say(self.format(record))
