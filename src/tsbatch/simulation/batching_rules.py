"""TorchServe's batching rules for one version of a model, exactly as it applies them.

::

    arrival ─ queue ─ begun ─ assembly ─ handed over ─ handler ─ answered ─ free
              (a worker, and the lock)    (full, or the delay is over)

The rules in wlm/Model.java (pollBatch, addJob) and wlm/WorkerThread.java of TorchServe 0.12.0:

* A request that finds ``queue_size`` others waiting is refused at once.
* One worker at a time assembles a batch: it holds a lock while it waits for its first request and for the others, and
  free workers wait for the lock.
* The delay starts when the worker takes its first request, not when that request arrived. The worker takes queued
  requests at once, then each new one as it arrives, until the batch is full or the delay is over.
* The clock of the delay has whole milliseconds: with a delay of 1 ms a second request ends the assembly only if the
  clock has ticked since the first.
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

MAX_WITHOUT_DELAY: Final = 2
"""Maximum batch size if the delay is 0."""

Handler = Callable[[Sequence[int]], float]
"""Return the handler time of a batch in ms, given the indices of its requests in the order of their arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a model on TorchServe.

    Attributes:
        workers: number of workers.
        batch_size: maximum number of requests in a batch (batchSize).
        max_batch_delay: ms that a worker waits for further requests (maxBatchDelay).
        queue_size: number of requests that may wait (jobQueueSize).
    """

    workers: int = 1
    batch_size: int = 1
    max_batch_delay: int = 100
    queue_size: int = DEFAULT_QUEUE_SIZE

    def __post_init__(self) -> None:
        for name in ("workers", "batch_size", "queue_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; expected at least 1")

    def to_json(self) -> dict[str, int]:
        """Return the settings under TorchServe's names."""
        return {
            "workers": self.workers,
            "batchSize": self.batch_size,
            "maxBatchDelay": self.max_batch_delay,
            "jobQueueSize": self.queue_size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """TorchServe's own time, in ms.

    Attributes:
        frontend: of each request outside its worker: network and HTTP, both ways.
        batch: of each batch, in its worker but outside the handler.
        request: of each request in a batch, likewise; answers are sent one after the other.
    """

    frontend: float = 0.0
    batch: float = 0.0
    request: float = 0.0

    def of_batch(self, size: int) -> float:
        """Return how long a batch of this size occupies its worker outside the handler."""
        return self.batch + self.request * size


class Feedback(Protocol):
    """Clients that send their next request after an answer."""

    def after_answers(self, answered: Sequence[float]) -> Sequence[float]:
        """Return when the clients answered at these times send again, in ms; fewer times if some are done."""

    def after_refusal(self, at: float) -> float | None:
        """Return when a client refused at ``at`` sends again, in ms; None if it is done."""


@dataclass(slots=True)
class Batches:
    """The batches made from the arrivals, in the order of their hand-over; times in ms.

    Attributes:
        arrivals: of all requests, ascending; those of a closed loop are complete only at the end.
        admitted: indices of the requests that were not refused, in the order in which batches took them.
        size: number of requests in each batch: the next ones of ``admitted``.
        begun: when a worker took the first request.
        handed: when the batch was complete.
        took: ms in the handler.
        worker: index of the worker.
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
    """Form the batches of these arrivals; the loop runs once per batch.

    Args:
        settings: of the model.
        arrivals: when requests reach the queue, in ms from 0, ascending; with ``feedback`` the first ones, to which the
            others are added.
        handler: the handler times.
        overhead: TorchServe's own time.
        feedback: the clients of a closed loop.
    """
    queue = _Queue(settings, arrivals, feedback)
    batches = queue.batches
    # Every worker is waiting when the first request arrives, at 0 or later.
    free = [-1.0] * settings.workers
    while True:
        # The lock takes no time: a worker that waits while holding it leaves nothing in the queue.
        earliest = min(free)
        begun, handed, size = queue.assemble(earliest)
        if not size:
            return batches
        members = batches.admitted[queue.taken : queue.taken + size]
        queue.taken += size
        took = handler(members)
        worker = free.index(earliest)
        free[worker] = until = handed + took + overhead.batch + overhead.request * size
        if feedback:
            queue.arrive(feedback.after_answers([until - overhead.request * left for left in range(size - 1, -1, -1)]))
        batches.size.append(size)
        batches.begun.append(begun)
        batches.handed.append(handed)
        batches.took.append(took)
        batches.worker.append(worker)


class _Queue:
    """The requests that have arrived, those that wait, and those that are still to arrive."""

    __slots__ = ("_capacity", "_delay", "_feedback", "_max_size", "_seen", "batches", "taken")

    def __init__(self, settings: Settings, arrivals: list[float], feedback: Feedback | None) -> None:
        self.batches = Batches(arrivals)
        self.taken = 0
        self._seen = 0
        self._feedback = feedback
        self._capacity = settings.queue_size
        self._delay = max(0, settings.max_batch_delay)
        self._max_size = settings.batch_size if self._delay else min(MAX_WITHOUT_DELAY, settings.batch_size)

    def assemble(self, now: float) -> tuple[float, float, int]:
        """Assemble a batch for a worker that gets the lock at ``now``: begun, handed over, size (0: none is left)."""
        times, seen = self.batches.arrivals, self._seen
        if seen < len(times) and times[seen] <= now:
            self._let_wait(now)
        size = len(self.batches.admitted) - self.taken
        if size >= self._max_size:
            return now, now, self._max_size
        if not size:
            if self._seen == len(times):
                return now, now, 0
            now = times[self._seen]
            self._take()
            size = 1
            if self._max_size == 1:
                return now, now, 1
        return now, *self._fill(now, size)

    def _let_wait(self, until: float) -> None:
        """Queue or refuse the requests until then, while no worker took any."""
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
        """Take requests as they arrive; return when the batch is handed over, and its size then."""
        times, count, max_size = self.batches.arrivals, len(self.batches.arrivals), self._max_size
        first, seen = int(begun), self._seen
        deadline = begun + self._delay
        while size < max_size:
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
        """Add further arrivals."""
        for time in times:
            insort(self.batches.arrivals, time, self._seen)
