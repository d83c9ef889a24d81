"""Generate load in a closed or an open loop and record every request.

In a closed loop each client sends its next request when the previous one is answered: a stalled server receives no
requests, which hides its stalls. In an open loop requests are due at fixed times whatever the server does, and latency
counts from the due time. :meth:`Generator._handle` covers the whole life of a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Final

from tsbatch.bench.http_client import Address, Answer, Connection, connect
from tsbatch.bench.request_bodies import Body
from tsbatch.bench.request_log import Progress, RequestLog, failure_reason
from tsbatch.bench.result_file import Run
from tsbatch.bench.send_times import Arrivals
from tsbatch.errors import ServerError, UsageError
from tsbatch.serving.tokens import FixedToken, TokenSource

SECONDS_BETWEEN_PROGRESS: Final = 0.5
SECONDS_AFTER_NO_CONNECTION: Final = 0.1
"""Pause of a client that cannot connect, which would otherwise retry ten thousand times a second."""

PROBES: Final = 3
"""Number of requests sent before the load; if all of them fail, the load is not started."""

TOKEN_REFUSED: Final = b"InvalidKeyException"
MAX_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests to send and their timing.

    Attributes:
        address: the server.
        bodies: the request bodies, sent in turn and repeated; an empty body is sent as a GET.
        headers: sent with every request; an ``Authorization`` header replaces the token.
        tokens: source of the inference token.
        clients: number of clients of a closed loop.
        arrivals: arrival times of an open loop.
        warm_up: seconds at the start that are not measured.
        seconds: measured duration; or
        requests: number of measured requests. With neither, the load ends with the arrivals.
        timeout: seconds to wait for an answer.
        connections: maximum number of open connections in an open loop.
    """

    address: Address
    bodies: Sequence[Body]
    headers: Mapping[str, str] = field(default_factory=dict)
    tokens: TokenSource = field(default_factory=lambda: FixedToken(None))
    clients: int | None = None
    arrivals: Arrivals | None = None
    warm_up: float = 0.0
    seconds: float | None = None
    requests: int | None = None
    timeout: float = 30.0
    connections: int = 1000


@dataclass(slots=True)
class _Counts:
    connections: int = 0
    reconnects: int = 0
    resent: int = 0
    new_tokens: int = 0
    waited_for_connection: int = 0


@dataclass(frozen=True, slots=True)
class _Message:
    head: bytes
    body: bytes
    items: int


class Generator:
    """Runs one load.

    Args:
        load: the requests to send.
        on_progress: called twice a second.
    """

    def __init__(self, load: Load, on_progress: Callable[[Progress], None] | None = None) -> None:
        self.load = load
        self._on_progress = on_progress
        self._messages = itertools.cycle([message_of(load, body) for body in load.bodies])
        self._authorization = self._read_token()
        self._counts = _Counts()
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(load.connections)
        self._left = load.requests
        self._by_clock = False
        self._log = RequestLog(0.0, 0.0, 0.0)

    async def run(self) -> Run:
        """Send all requests and wait for the answers; the result has no step and no server-side measurements.

        Raises:
            ServerError: the server is unreachable, or the first requests all fail.
            UsageError: the server rejects the first requests.
        """
        try:
            await self._probe()
            return await self._measure()
        finally:
            for connection in self._idle:
                connection.close()

    async def _measure(self) -> Run:
        begin = time.monotonic()
        start = begin + self.load.warm_up
        self._log = RequestLog(begin, start, start + (self.load.seconds or float("inf")))
        cpu = time.process_time()
        helpers = [asyncio.create_task(self._refresh_token()), asyncio.create_task(self._report_progress())]
        try:
            await (self._closed_loop() if self.load.arrivals is None else self._open_loop(self.load.arrivals))
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        return self._result(time.process_time() - cpu)

    async def _probe(self) -> None:
        answers = []
        for _ in range(min(PROBES, len(self.load.bodies))):
            answer, connection = await self._exchange(next(self._messages), None)
            self._give_back(connection)
            if answer.status and answer.status < 400:
                return
            answers.append(answer)
        reason, address, status = failure_reason(answers[0]), self.load.address, answers[0].status
        if not status:
            raise ServerError(f"no answer from {address.netloc}: {reason}")
        failure = UsageError if status < 500 else ServerError
        raise failure(f"{address.netloc} answered {status} to {address.path}, so nothing was measured: {reason}")

    async def _closed_loop(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(self.load.clients or 1)))

    async def _client(self) -> None:
        connection = self._idle.pop() if self._idle else None
        while self._more(now := time.monotonic()):
            connection = await self._handle(next(self._messages), now, connection)
        self._give_back(connection)

    async def _open_loop(self, arrivals: Arrivals) -> None:
        in_flight: set[asyncio.Task[None]] = set()
        for offset in arrivals:
            due = self._log.begin + offset
            if not self._more(due):
                break
            # Sleep even when late, so that answers are read.
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._arrive(due))
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
        await asyncio.gather(*in_flight)

    async def _arrive(self, due: float) -> None:
        self._counts.waited_for_connection += self._slots.locked()
        async with self._slots:
            self._give_back(await self._handle(next(self._messages), due, self._idle.pop() if self._idle else None))

    def _more(self, due: float) -> bool:
        """Whether the load still includes a request that is due then."""
        if due >= self._log.stop:
            self._by_clock = True
            return False
        if self._left is None or due < self._log.start:
            return True
        self._left -= 1
        return self._left >= 0

    async def _handle(self, message: _Message, due: float, connection: Connection | None) -> Connection | None:
        """Send one request, record its outcome, and return its connection if that can be reused."""
        started = time.monotonic()
        answer, connection = await self._exchange(message, connection)
        self._log.record(due, started, answer, message.items, len(message.body))
        return connection

    async def _exchange(self, message: _Message, connection: Connection | None) -> tuple[Answer, Connection | None]:
        answer = Answer(0.0, 0)
        for _ in range(MAX_ATTEMPTS):
            try:
                connection = await self._connected(connection)
            except OSError as error:
                failed = Answer(time.monotonic(), 0, reason=connection_failure(error))
                if self.load.arrivals is None:
                    await asyncio.sleep(SECONDS_AFTER_NO_CONNECTION)
                return failed, None
            used = connection.requests > 0
            answer = await connection.request(self._encode(message), self.load.timeout)
            if answer.stale and used:
                # The server closed an idle connection just as we wrote; any client would resend the request.
                self._counts.resent += 1
            elif not (answer.status == 400 and TOKEN_REFUSED in answer.body and self._token_changed()):
                break
        assert connection is not None
        if connection.usable:
            return answer, connection
        self._counts.reconnects += 1
        return answer, None

    async def _connected(self, connection: Connection | None) -> Connection:
        if connection is not None:
            if connection.usable:
                return connection
            self._counts.reconnects += 1
        connected = await connect(self.load.address, self.load.timeout)
        self._counts.connections += 1
        return connected

    def _give_back(self, connection: Connection | None) -> None:
        if connection is not None and connection.usable:
            self._idle.append(connection)

    def _encode(self, message: _Message) -> bytes:
        now = self._log.epoch + time.monotonic()
        return b"%b%bX-Request-Start: t=%.6f\r\n\r\n%b" % (message.head, self._authorization, now, message.body)

    def _read_token(self) -> bytes:
        if any(name.lower() == "authorization" for name in self.load.headers):
            return b""
        token = self.load.tokens.token("inference")
        return f"Authorization: Bearer {token}\r\n".encode() if token else b""

    def _token_changed(self) -> bool:
        before = self._authorization
        with contextlib.suppress(
            ServerError
        ):  # the key file is unreadable at the moment; the old token may still be valid
            self._authorization = self._read_token()
        self._counts.new_tokens += before != self._authorization
        return before != self._authorization

    async def _refresh_token(self) -> None:
        while not isinstance(self.load.tokens, FixedToken):
            await asyncio.sleep(1)
            self._token_changed()

    async def _report_progress(self) -> None:
        while self._on_progress is not None:
            await asyncio.sleep(SECONDS_BETWEEN_PROGRESS)
            self._on_progress(self._log.progress(time.monotonic()))

    def _result(self, cpu: float) -> Run:
        log, samples = self._log, self._log.samples()
        good = samples.ok
        return Run(
            started=datetime.fromtimestamp(log.start + log.epoch, timezone.utc).isoformat(),
            step=None,
            seconds=(log.stop if self._by_clock else max(log.last, log.start + 1e-9)) - log.start,
            answered=log.answered if self._by_clock else int(good.sum()),
            answered_items=log.items if self._by_clock else float(samples.items[good].sum()),
            samples=samples,
            errors=log.failures(),
            generator={
                "cpu": round(cpu / (time.monotonic() - log.begin), 4),
                "lateness": log.lateness(),
                **asdict(self._counts),
            },
            warm_up={"seconds": self.load.warm_up, "requests": log.warm_up, "failed": log.warm_up_failed},
        )


def message_of(load: Load, body: Body) -> _Message:
    """An encoded request without its token and timestamp."""
    method = "POST" if body.content else "GET"
    fields = {"Host": load.address.netloc, **load.headers}
    if body.content:
        fields |= {"Content-Type": body.content_type, "Content-Length": str(len(body.content))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return _Message(f"{method} {load.address.path} HTTP/1.1\r\n{lines}".encode(), body.content, body.items)


def connection_failure(error: OSError) -> str:
    """A short reason why a connection failed."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__
