"""Which requests travel together, and when: TorchServe's rules for one version of a model, as exactly as it keeps them.

::

    arrival ─ queue ─ begun ─ assembly ─ handed over ─ handler ─ answered ─ free
              (a worker, and the lock)    (full, or the delay is over)

What wlm/Model.java (pollBatch, addJob) and wlm/WorkerThread.java of TorchServe 0.12.0 do:

* A request that finds ``queue_size`` others waiting is refused at once.
* One worker at a time assembles a batch: it holds a lock while it waits for its first request and for the others, and
  free workers wait for the lock.
* The delay counts from when the worker took its first request, not from when that arrived. What is already queued is
  taken at once; then each newcomer as it arrives, until the batch is full or the delay is over.
* The clock for that shows whole milliseconds: what is left of the delay is counted in ticks, so that with a delay of
  1 ms a second request ends the assembly just when the clock ticked since the first.
* A delay of 0 or less ends the assembly after the second request, however many wait. A batch of 1 never waits.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tsbatch.errors import UsageError

DEFAULT_QUEUE_SIZE: Final = 100
"""TorchServe's job_queue_size."""

MOST_WITHOUT_DELAY: Final = 2
"""Requests of a batch whose delay is 0."""

Handler = Callable[[Sequence[int]], float]
"""How long the handler takes for a batch, in ms; told the numbers of its requests, in the order of their arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What TorchServe is told of a model.

    Attributes:
        workers: how many there are.
        batch_size: the most requests of a batch (batchSize).
        max_batch_delay: ms that a worker waits for further requests (maxBatchDelay).
        queue_size: requests that may wait (jobQueueSize).
    """

    workers: int = 1
    batch_size: int = 1
    max_batch_delay: int = 100
    queue_size: int = DEFAULT_QUEUE_SIZE

    def __post_init__(self) -> None:
        for name in ("workers", "batch_size", "queue_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What TorchServe itself costs, in ms.

    Attributes:
        frontend: of each request outside its worker: network and HTTP, both ways.
        batch: of each batch, in its worker and beside the handler.
        request: of each request of it, likewise; answers are sent one after the other.
    """

    frontend: float = 0.0
    batch: float = 0.0
    request: float = 0.0

    def of_batch(self, size: int) -> float:
        """How long a batch of so many keeps its worker beside the handler."""
        return self.batch + self.request * size


class Feedback(Protocol):
    """Clients that send their next request when they have an answer."""

    def after_answers(self, answered: Sequence[float]) -> Sequence[float]:
        """When those who are answered at these times send again, ms; fewer or none when they have had enough."""

    def after_refusal(self, at: float) -> float | None:
        """When one that was refused at ``at`` sends again, ms."""


@dataclass(slots=True)
class Batches:
    """What the rules made of the arrivals; batches in the order of their hand-over, times in ms.

    Attributes:
        arrivals: of all requests, ascending; a closed loop's are known only now.
        admitted: numbers of the requests that were not refused, in the order in which batches took them.
        size: requests in each batch: the next so many of ``admitted``.
        begun: when a worker took its first request.
        handed: when it was complete.
        took: ms in the handler.
        worker: which worker's, from 0.
    """

    arrivals: list[float]
    admitted: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    handed: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    worker: list[int] = field(default_factory=list)


def form_batches(
    settings: Settings, arrivals: list[float], handler: Handler, overhead: Overhead, feedback: Feedback | None = None
) -> Batches:
    """Let these arrivals happen; the loop goes round once for each batch.

    Args:
        settings: the model's.
        arrivals: when requests reach the queue, ms from 0 on, ascending; with ``feedback`` the first ones, to which
            the others are added.
        handler: how long it takes.
        overhead: what TorchServe costs.
        feedback: of a closed loop.
    """
    queue = _Queue(settings, arrivals, feedback)
    batches = queue.batches
    # Everybody waits when the first request comes, at 0 or later.
    free = [-1.0] * settings.workers
    while True:
        # The lock needs no time of its own: whoever waits while holding it leaves nothing in the queue to begin with.
        soonest = min(free)
        begun, handed, size = queue.assemble(soonest)
        if not size:
            return batches
        members = batches.admitted[queue.taken : queue.taken + size]
        queue.taken += size
        took = handler(members)
        worker = free.index(soonest)
        free[worker] = until = handed + took + overhead.batch + overhead.request * size
        if feedback:
            queue.arrive(feedback.after_answers([until - overhead.request * left for left in range(size - 1, -1, -1)]))
        batches.size.append(size)
        batches.begun.append(begun)
        batches.handed.append(handed)
        batches.took.append(took)
        batches.worker.append(worker)


class _Queue:
    """The requests that have come, those that wait, and those that are still to come."""

    __slots__ = ("_capacity", "_delay", "_feedback", "_most", "_seen", "batches", "taken")

    def __init__(self, settings: Settings, arrivals: list[float], feedback: Feedback | None) -> None:
        self.batches = Batches(arrivals)
        self.taken = 0
        self._seen = 0
        self._feedback = feedback
        self._capacity = settings.queue_size
        self._delay = max(0, settings.max_batch_delay)
        self._most = settings.batch_size if self._delay else min(MOST_WITHOUT_DELAY, settings.batch_size)

    def assemble(self, now: float) -> tuple[float, float, int]:
        """A batch of a worker that has the lock from ``now`` on: begun, handed over, size; 0 when nobody comes."""
        times, seen = self.batches.arrivals, self._seen
        if seen < len(times) and times[seen] <= now:
            self._let_wait(now)
        size = len(self.batches.admitted) - self.taken
        if size >= self._most:
            return now, now, self._most
        if not size:
            if self._seen == len(times):
                return now, now, 0
            now = times[self._seen]
            self._take()
            size = 1
            if self._most == 1:
                return now, now, 1
        return now, *self._fill(now, size)

    def _let_wait(self, until: float) -> None:
        """Nobody took requests until then: they waited, or found the queue full."""
        times, admitted = self.batches.arrivals, self.batches.admitted
        came = bisect_right(times, until, self._seen)
        room = self._capacity - (len(admitted) - self.taken)
        admitted.extend(range(self._seen, min(came, self._seen + room)))
        if came - self._seen <= room or self._feedback is None:
            self._seen = came
            return
        self._seen += room
        while self._seen < len(times) and times[self._seen] <= until:
            again = self._feedback.after_refusal(times[self._seen])
            self._seen += 1
            self.arrive([] if again is None else [again])

    def _take(self) -> None:
        self.batches.admitted.append(self._seen)
        self._seen += 1

    def _fill(self, begun: float, size: int) -> tuple[float, int]:
        """Take newcomers as they arrive: when the batch is handed over, and its size then."""
        times, count, most = self.batches.arrivals, len(self.batches.arrivals), self._most
        first, seen = int(begun), self._seen
        deadline = begun + self._delay
        while size < most:
            now = times[seen] if seen < count else deadline + 1
            if now > deadline:
                now = deadline
                break
            seen += 1
            size += 1
            left = self._delay - (int(now) - first)
            if left <= 0:
                break
            deadline = now + left
        self.batches.admitted.extend(range(self._seen, seen))
        self._seen = seen
        return now, size

    def arrive(self, times: Sequence[float]) -> None:
        """Further requests are to come."""
        for time in times:
            insort(self.batches.arrivals, time, self._seen)
