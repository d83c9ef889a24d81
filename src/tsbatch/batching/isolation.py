"""Find the guilty entries of a failing batch by bisection.

One bad input makes a vectorised call fail for everybody. Halving the batch until the failing call has one
entry finds k guilty among n with at most about 2·k·log2(n) further calls, and all others get their results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tsbatch.errors import STOPS, NotTried, ReplyError

Entry = TypeVar("Entry")
Result = TypeVar("Result")


@dataclass(slots=True)
class Outcome(Generic[Result]):
    """One entry's result, or the error that is its own."""

    result: Result | None = None
    error: ReplyError | None = None


@dataclass(slots=True)
class Budget:
    """Time for finding the guilty of one batch, shared by all its stages and micro-batches.

    Only the calls after a failure are charged: a batch that works is never given up, however slow it is.

    Attributes:
        seconds: what there was in the beginning, for the message.
        left: what is left, in seconds.
    """

    seconds: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.seconds


def isolate(
    call: Callable[[Sequence[Entry]], Sequence[Result]],
    entries: Sequence[Entry],
    *,
    explain: Callable[[BaseException], ReplyError],
    budget: Budget,
) -> list[Outcome[Result]]:
    """``call`` on all entries at once; when it fails, on halves, until only the guilty fail.

    Args:
        call: takes a part of the entries, gives one result each, in order; may raise anything.
        entries: at least the entries that are still good.
        explain: turns an exception of a single entry into its answer.
        budget: the batch's time for this; when it is used up, entries are given up with 503, so that the worker
            answers before TorchServe's responseTimeout ends it.

    Returns:
        One outcome an entry, in order.
    """
    outcomes: list[Outcome[Result]] = []
    failed_at: float | None = None
    parts = [entries] if entries else []
    while parts:
        part = parts.pop()
        if failed_at is not None and time.monotonic() - failed_at > budget.left:
            outcomes += [Outcome(error=_not_tried(budget.seconds)) for _ in part]
            continue
        try:
            outcomes += [Outcome(result) for result in call(part)]
        except STOPS:
            raise
        except BaseException as error:
            failed_at = failed_at or time.monotonic()
            if len(part) == 1:
                outcomes.append(Outcome(error=explain(error)))
            else:
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
    if failed_at is not None:
        budget.left -= time.monotonic() - failed_at
    return outcomes


def _not_tried(seconds: float) -> NotTried:
    return NotTried(
        f"another request of the batch failed and looking for it took over {seconds:g} s",
        expected="a retry; tsbatch.batching.isolation_seconds sets the time",
    )
