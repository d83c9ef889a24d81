"""Find the guilty entries of a failing batch by bisection.

One bad input makes a vectorised call fail for everybody. Halving the batch until the failing call has one
entry finds k guilty among n with at most about 2·k·log2(n) further calls, and all others get their results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tsbatch.errors import STOPS, NotTried, ReplyError

Entry = TypeVar("Entry")
Result = TypeVar("Result")


@dataclass(slots=True)
class Outcome(Generic[Result]):
    """One entry's result, or the error that is its own."""

    result: Result | None = None
    error: ReplyError | None = None


def isolate(
    call: Callable[[Sequence[Entry]], Sequence[Result]],
    entries: Sequence[Entry],
    *,
    explain: Callable[[BaseException], ReplyError],
    seconds: float,
) -> list[Outcome[Result]]:
    """``call`` on all entries at once; when it fails, on halves, until only the guilty fail.

    Args:
        call: takes a part of the entries, gives one result each, in order; may raise anything.
        entries: at least the entries that are still good.
        explain: turns an exception of a single entry into its answer.
        seconds: time from the first failure after which entries are given up with 503, so that the worker
            answers before TorchServe's responseTimeout ends it.

    Returns:
        One outcome an entry, in order.
    """
    outcomes: list[Outcome[Result]] = []
    deadline: float | None = None
    parts = [entries] if entries else []
    while parts:
        part = parts.pop()
        if deadline is not None and time.monotonic() > deadline:
            outcomes += [Outcome(error=_not_tried(seconds)) for _ in part]
            continue
        try:
            outcomes += [Outcome(result) for result in call(part)]
        except STOPS:
            raise
        except BaseException as error:
            deadline = deadline or time.monotonic() + seconds
            if len(part) == 1:
                outcomes.append(Outcome(error=explain(error)))
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
    return outcomes


def _not_tried(seconds: float) -> NotTried:
    return NotTried(
        f"another request of the batch failed and looking for it took over {seconds:g} s",
        expected="a retry; tsbatch.batching.isolation_seconds sets the time",
    )
