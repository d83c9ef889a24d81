"""From Ray's batching to the handler's loop: one batch at a time, in a thread beside the event loop.

Ray gathers (``@serve.batch``): a batch is full, or its delay is over. But Ray does not wait for a free handler: while
one batch is computed it goes on closing batches after each delay, however few requests are in them, and they queue.
So what Ray has gathered is put in line here, and the handler takes as many as a batch can hold whenever it is free.
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
    """504: the request's own deadline had passed before its batch was handed over; nothing was computed for it."""

    status = 504
    code = "deadline_exceeded"
    phrase = "Gateway Timeout"


class BatchOverdue(HandlerError):
    """504: the batch took longer than responseTimeout; the replica is replaced."""

    status = 504
    code = "response_timeout"
    phrase = "Gateway Timeout"


class ReplicaEnding(HandlerError):
    """503: this replica will not answer any more; another one will."""

    status = 503
    code = "replica_ending"
    phrase = "Service Unavailable"


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in line.

    Attributes:
        request: the request.
        reply: will be its answer.
        deadline: seconds since the epoch after which nobody wants it; None for never.
    """

    request: Request
    reply: asyncio.Future[Reply]
    deadline: float | None = None


@dataclass(eq=False)
class Batches:
    """The line of a replica, and who works it off. To be used from one event loop.

    Attributes:
        handler: loaded.
        thread: where it was loaded, and computes.
        settings: how large a batch is, and how long it may take.
        metrics: where the figures go.
        gather: Ray's batching around :meth:`line_up`; takes one ticket.
    """

    handler: BatchHandler
    thread: Executor
    settings: RaySettings
    metrics: MetricSink
    gather: Callable[[Ticket], Any] = field(init=False)
    overdue: bool = False
    _line: deque[Ticket] = field(default_factory=deque)
    _worker: asyncio.Task[None] | None = None

    async def answer(self, request: Request, deadline: float | None = None) -> Reply:
        """The answer to one request, whatever happens to its batch."""
        if self.overdue:
            return self._refused(request, ReplicaEnding("a batch has hung in this replica, which is being replaced"))
        ticket = Ticket(request, asyncio.get_running_loop().create_future(), deadline)
        await self.gather(ticket)
        return await ticket.reply

    async def line_up(self, tickets: Sequence[Ticket]) -> Sequence[None]:
        """What Ray calls with the tickets that it has gathered."""
        self._line.extend(tickets)
        if self.overdue:
            self._dismiss()
        elif self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work_off())
        return [None] * len(tickets)

    async def _work_off(self) -> None:
        while self._line:
            batch = self._next_batch()
            if batch:
                await self._run(batch)

    def _next_batch(self) -> list[Ticket]:
        """The next requests that somebody still waits for; those past their deadline are answered."""
        batch: list[Ticket] = []
        now = time.time()
        while self._line and len(batch) < self.settings.batch_size:
            ticket = self._line.popleft()
            if ticket.reply.cancelled():
                continue  # the client has gone
            if ticket.deadline is not None and ticket.deadline < now:
                late = DeadlineExceeded(f"the request's deadline passed {now - ticket.deadline:.3f} s before its turn")
                self._finish(ticket, self._refused(ticket.request, late))
            else:
                batch.append(ticket)
        return batch

    async def _run(self, batch: list[Ticket]) -> None:
        requests = [ticket.request for ticket in batch]
        for index, request in enumerate(requests):
            request.index = index
        working = asyncio.get_running_loop().run_in_executor(self.thread, self._compute, requests)
        done, _ = await asyncio.wait([working], timeout=self.settings.response_timeout)
        if not done:
            self._give_up(batch)
            return
        replies, record = working.result()
        for ticket, reply in zip(batch, replies, strict=True):
            self._finish(ticket, reply)
        self._emit(record)

    def _compute(self, requests: Sequence[Request]) -> tuple[list[Reply], BatchRecord | None]:
        """In the handler's thread: the loop that knows no server. It never raises."""
        sink = ListSink(len(requests))
        record = None
        try:
            record = self.handler.run_batch(requests, sink)
            return sink.replies, record
        except BaseException as error:
            logger.exception("the batch loop failed; this is a defect of tsbatch")
            failure = StageFailed(f"the batch loop raised {type(error).__name__}")
            return [encode_error(failure, request, self.handler.identity) for request in requests], record
        finally:
            self.handler.free_since = time.time()

    def _give_up(self, batch: Sequence[Ticket]) -> None:
        self.overdue = True
        seconds = self.settings.response_timeout
        logger.error("a batch takes longer than responseTimeout (%g s); this replica has to be replaced", seconds)
        for ticket in batch:
            late = BatchOverdue(f"the batch took longer than responseTimeout, {seconds:g} s")
            self._finish(ticket, self._refused(ticket.request, late))
        self._dismiss()

    def _dismiss(self) -> None:
        """Send away who is in line: nobody will compute here any more."""
        while self._line:
            ticket = self._line.popleft()
            hung = ReplicaEnding("a batch before this request has hung; the replica is being replaced")
            self._finish(ticket, self._refused(ticket.request, hung))

    def _refused(self, request: Request, error: ReplyError) -> Reply:
        """The answer to a request that the handler did not get to see."""
        self.metrics.count("FailedRequests", 1, {"Cause": error.code})
        body = request.fields.get("body")
        if isinstance(body, dict) and "instances" in body:  # decoding, which would have said so, has not come to it
            request.protocol = "kserve-v1"
        reply = encode_error(error, request, self.handler.identity)
        if error.status == ReplicaEnding.status:
            reply.headers["Retry-After"] = str(RETRY_AFTER)
        return reply

    @staticmethod
    def _finish(ticket: Ticket, reply: Reply) -> None:
        if not ticket.reply.done():
            ticket.reply.set_result(reply)

    def _emit(self, record: BatchRecord | None) -> None:
        if record is None:
            return
        try:
            emit(record, self.metrics, everything=self.handler.settings.telemetry.metrics)
        except Exception:  # figures are never worth an answer
            logger.exception("the metrics of a batch could not be emitted")
