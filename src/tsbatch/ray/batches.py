"""Pass requests from Ray's batching to the handler's loop, one batch at a time, in a separate thread.

Ray (``@serve.batch``) closes a batch when it is full or its delay is over. But Ray does not wait for a free handler:
while one batch is computed, it keeps closing batches after each delay, however few requests they have, and they queue
up. So this module queues the requests that Ray has gathered, and the handler takes a full batch whenever it is free.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from tsbatch.errors import HandlerError, ReplyError, StageFailed
from tsbatch.handler import BatchHandler
from tsbatch.protocol.encoding import encode_error
from tsbatch.protocol.reply import ListSink, Reply
from tsbatch.protocol.request import Request
from tsbatch.ray.deployment_options import RETRY_AFTER, RaySettings
from tsbatch.worker.telemetry import BatchRecord, MetricSink, emit

logger = logging.getLogger("tsbatch")


class DeadlineExceeded(HandlerError):
    """504: the request's own deadline passed before its batch started; nothing was computed for it."""

    status = 504
    code = "deadline_exceeded"
    phrase = "Gateway Timeout"


class BatchOverdue(HandlerError):
    """504: the batch took longer than responseTimeout; the replica is replaced."""

    status = 504
    code = "response_timeout"
    phrase = "Gateway Timeout"


class ReplicaEnding(HandlerError):
    """503: this replica no longer answers; another one will."""

    status = 503
    code = "replica_ending"
    phrase = "Service Unavailable"


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """A request in the queue.

    Attributes:
        request: the request.
        reply: its future answer.
        deadline: seconds since the epoch after which the client does not want an answer; None for no deadline.
    """

    request: Request
    reply: asyncio.Future[Reply]
    deadline: float | None = None


@dataclass(eq=False)
class Batches:
    """The queue of a replica, and the task that processes it. For use from one event loop.

    Attributes:
        handler: the loaded handler.
        thread: the thread in which it was loaded and computes.
        settings: how large a batch is, and how long it may take.
        metrics: takes the metrics.
        gather: Ray's batching around :meth:`enqueue`; takes one request.
        overdue: whether a batch took longer than responseTimeout.
    """

    handler: BatchHandler
    thread: Executor
    settings: RaySettings
    metrics: MetricSink
    gather: Callable[[QueuedRequest], Any] = field(init=False)
    overdue: bool = False
    _queue: deque[QueuedRequest] = field(default_factory=deque)
    _worker: asyncio.Task[None] | None = None

    async def answer(self, request: Request, deadline: float | None = None) -> Reply:
        """Return the answer to one request, whatever happens to its batch."""
        if self.overdue:
            return self._error_reply(request, ReplicaEnding("a batch hangs in this replica, which is being replaced"))
        queued = QueuedRequest(request, asyncio.get_running_loop().create_future(), deadline)
        await self.gather(queued)
        return await queued.reply

    async def enqueue(self, requests: Sequence[QueuedRequest]) -> Sequence[None]:
        """Add requests to the queue; called by Ray with those that it has gathered."""
        self._queue.extend(requests)
        if self.overdue:
            self._refuse_all()
        elif self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._process())
        return [None] * len(requests)

    async def _process(self) -> None:
        while self._queue:
            batch = self._next_batch()
            if batch:
                await self._run(batch)

    def _next_batch(self) -> list[QueuedRequest]:
        """Take the next requests that clients still wait for; answer those past their deadline."""
        batch: list[QueuedRequest] = []
        now = time.time()
        while self._queue and len(batch) < self.settings.batch_size:
            queued = self._queue.popleft()
            if queued.reply.cancelled():
                continue  # the client has disconnected
            if queued.deadline is not None and queued.deadline < now:
                late = DeadlineExceeded(f"the request's deadline passed {now - queued.deadline:.3f} s before its turn")
                self._finish(queued, self._error_reply(queued.request, late))
            else:
                batch.append(queued)
        return batch

    async def _run(self, batch: list[QueuedRequest]) -> None:
        requests = [queued.request for queued in batch]
        for index, request in enumerate(requests):
            request.index = index
        working = asyncio.get_running_loop().run_in_executor(self.thread, self._compute, requests)
        done, _ = await asyncio.wait([working], timeout=self.settings.response_timeout)
        if not done:
            self._mark_overdue(batch)
            return
        replies, record = working.result()
        for queued, reply in zip(batch, replies, strict=True):
            self._finish(queued, reply)
        self._emit(record)

    def _compute(self, requests: Sequence[Request]) -> tuple[list[Reply], BatchRecord | None]:
        """Run the handler's loop, in the handler's thread. Never raises."""
        sink = ListSink(len(requests))
        record = None
        try:
            record = self.handler.run_batch(requests, sink)
            return sink.replies, record
        except BaseException as error:
            logger.exception("the batch loop failed; this is a bug in tsbatch")
            failure = StageFailed(f"the batch loop raised {type(error).__name__}")
            return [encode_error(failure, request, self.handler.identity) for request in requests], record
        finally:
            self.handler.free_since = time.time()

    def _mark_overdue(self, batch: Sequence[QueuedRequest]) -> None:
        self.overdue = True
        seconds = self.settings.response_timeout
        logger.error("a batch takes longer than responseTimeout (%g s); this replica must be replaced", seconds)
        for queued in batch:
            late = BatchOverdue(f"the batch took longer than responseTimeout ({seconds:g} s)")
            self._finish(queued, self._error_reply(queued.request, late))
        self._refuse_all()

    def _refuse_all(self) -> None:
        """Refuse all queued requests: this replica computes nothing any more."""
        while self._queue:
            queued = self._queue.popleft()
            hung = ReplicaEnding("an earlier batch hangs; the replica is being replaced")
            self._finish(queued, self._error_reply(queued.request, hung))

    def _error_reply(self, request: Request, error: ReplyError) -> Reply:
        """Return the answer to a request that never reached the handler."""
        self.metrics.count("FailedRequests", 1, {"Cause": error.code})
        body = request.fields.get("body")
        if isinstance(body, dict) and "instances" in body:  # not decoded yet, which would set this
            request.protocol = "kserve-v1"
        reply = encode_error(error, request, self.handler.identity)
        if error.status == ReplicaEnding.status:
            reply.headers["Retry-After"] = str(RETRY_AFTER)
        return reply

    @staticmethod
    def _finish(queued: QueuedRequest, reply: Reply) -> None:
        if not queued.reply.done():
            queued.reply.set_result(reply)

    def _emit(self, record: BatchRecord | None) -> None:
        if record is None:
            return
        try:
            emit(record, self.metrics, everything=self.handler.settings.telemetry.metrics)
        except Exception:  # a problem with metrics must not cost an answer
            logger.exception("the metrics of a batch could not be emitted")
