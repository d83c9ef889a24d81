"""Find the entries that make a batch fail, by bisection.

One bad input makes a vectorised call fail for the whole batch. Halving the batch until the failing call has one entry
finds k bad entries among n with at most about 2·k·log2(n) additional calls, and all other entries get their results.
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
    """The result of one entry, or its own error."""

    result: Result | None = None
    error: ReplyError | None = None


@dataclass(slots=True)
class Budget:
    """The time for isolating bad entries of one batch, shared by all its stages and micro-batches.

    Only calls after a failure count: a batch that works is never abandoned, however slow it is.

    Attributes:
        seconds: the initial budget, for the message.
        left: the remaining budget, in seconds.
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
    """Call ``call`` with all entries at once; if it fails, with halves, until only bad entries fail.

    Args:
        call: takes some of the entries and returns one result for each, in order; may raise anything.
        entries: the entries that have not failed so far.
        explain: turns the exception of a single entry into its error.
        budget: the time of the batch for this; when it is used up, the remaining entries fail with 503, so that the
            worker replies before TorchServe's responseTimeout kills it.

    Returns:
        One outcome per entry, in order.
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
        f"another request of the batch failed, and isolating it took longer than {seconds:g} s",
        expected="a retry; tsbatch.batching.isolation_seconds sets the limit",
    )
