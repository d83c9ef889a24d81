"""The load: requests that are sent in a closed or an open loop, and written down.

In a closed loop each client sends its next request when the last one is answered: a stalled server is asked nothing,
and so hides its stalls. In an open loop requests are due whatever the server does, and latency counts from when they
were due. Everything that happens to a request is in :meth:`Generator._handle`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final

from tsbatch.bench.http_client import Address, Answer, Connection, connect
from tsbatch.bench.request_bodies import Body
from tsbatch.bench.request_log import Ledger, Progress, reason_of
from tsbatch.bench.request_table import Samples
from tsbatch.bench.send_times import Arrivals
from tsbatch.errors import ServerError, UsageError
from tsbatch.serving.tokens import FixedToken, TokenSource

SECONDS_BETWEEN_PROGRESS: Final = 0.5
SECONDS_AFTER_NO_CONNECTION: Final = 0.1
"""A client that cannot connect would try ten thousand times a second otherwise."""

PROBES: Final = 3
"""Requests that are sent before the load; when all fail there is no point in going on."""

TOKEN_REFUSED: Final = b"InvalidKeyException"
TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send, and when.

    Attributes:
        address: the server.
        bodies: what is sent in turn, again from the first when all were; an empty one is a GET.
        headers: sent with every request; an ``Authorization`` among them is used instead of the token.
        tokens: where the token comes from, if one is wanted.
        clients: of a closed loop.
        arrivals: of an open loop.
        warm_up: seconds at the beginning that do not count.
        seconds: how long to measure; or
        requests: how many. Neither: as long as the arrivals last.
        timeout: seconds to wait for an answer.
        connections: the most to have open at a time, in an open loop.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a load gave; see :class:`tsbatch.bench.result_file.Run` for its parts."""

    started: str
    seconds: float
    answered: int
    answered_items: float
    samples: Samples
    errors: Sequence[Mapping[str, Any]]
    generator: Mapping[str, Any]
    warm_up: Mapping[str, Any]


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
    """One load on its way.

    Args:
        load: what to do.
        tell: told how it goes, twice a second.
    """

    def __init__(self, load: Load, tell: Callable[[Progress], None] | None = None) -> None:
        self.load = load
        self._tell = tell
        self._messages = itertools.cycle([message_of(load, body) for body in load.bodies])
        self._authorization = self._read_token()
        self._counts = _Counts()
        self._idle: list[Connection] = []
        self._slots = asyncio.Semaphore(load.connections)
        self._left = load.requests
        self._by_clock = False
        self._ledger = Ledger(0.0, 0.0, 0.0)

    async def run(self) -> Outcome:
        """Send everything and wait for the answers.

        Raises:
            ServerError: the server cannot be reached, or fails every request from the first.
            UsageError: it refuses every request from the first.
        """
        try:
            await self._probe()
            return await self._measure()
        finally:
            for connection in self._idle:
                connection.close()

    async def _measure(self) -> Outcome:
        begin = time.monotonic()
        start = begin + self.load.warm_up
        self._ledger = ledger = Ledger(begin, start, start + (self.load.seconds or float("inf")))
        cpu = time.process_time()
        helpers = [asyncio.create_task(self._keep_token()), asyncio.create_task(self._keep_telling())]
        try:
            await (self._closed_loop() if self.load.arrivals is None else self._open_loop(self.load.arrivals))
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
        return self._outcome(ledger, time.process_time() - cpu)

    async def _probe(self) -> None:
        answers = []
        for _ in range(min(PROBES, len(self.load.bodies))):
            answer, connection = await self._exchange(next(self._messages), None)
            self._give_back(connection)
            if answer.status and answer.status < 400:
                return
            answers.append(answer)
        said, address = reason_of(answers[0]), self.load.address
        if not answers[0].status:
            raise ServerError(f"no answer from {address.netloc}: {said}")
        failure = UsageError if answers[0].status < 500 else ServerError
        raise failure(f"{address.netloc} answered {answers[0].status} to {address.path}, nothing was measured: {said}")

    async def _closed_loop(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(self.load.clients or 1)))

    async def _client(self) -> None:
        connection = self._idle.pop() if self._idle else None
        while self._more(now := time.monotonic()):
            connection = await self._handle(next(self._messages), now, connection)
        self._give_back(connection)

    async def _open_loop(self, arrivals: Arrivals) -> None:
        under_way: set[asyncio.Task[None]] = set()
        for offset in arrivals:
            due = self._ledger.begin + offset
            if not self._more(due):
                break
            # Also when it is late, so that answers are read.
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._arrive(due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)

    async def _arrive(self, due: float) -> None:
        self._counts.waited_for_connection += self._slots.locked()
        async with self._slots:
            self._give_back(await self._handle(next(self._messages), due, self._idle.pop() if self._idle else None))

    def _more(self, due: float) -> bool:
        """Whether a request that is due then is still to be sent."""
        if due >= self._ledger.stop:
            self._by_clock = True
            return False
        if self._left is None or due < self._ledger.start:
            return True
        self._left -= 1
        return self._left >= 0

    async def _handle(self, message: _Message, due: float, connection: Connection | None) -> Connection | None:
        """Send one request, write down what became of it, and return its connection, if that is still good."""
        begun = time.monotonic()
        answer, connection = await self._exchange(message, connection)
        self._ledger.note(due, begun, answer, message.items, len(message.body))
        return connection

    async def _exchange(self, message: _Message, connection: Connection | None) -> tuple[Answer, Connection | None]:
        answer = Answer(0.0, 0)
        for _ in range(TRIES):
            try:
                connection = await self._connected(connection)
            except OSError as error:
                failed = Answer(time.monotonic(), 0, reason=no_connection(error))
                if self.load.arrivals is None:
                    await asyncio.sleep(SECONDS_AFTER_NO_CONNECTION)
                return failed, None
            used = connection.asked > 0
            answer = await connection.ask(self._bytes_of(message), self.load.timeout)
            if answer.stale and used:
                # The server closed an idle connection just when we wrote; any client would send it again.
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

    def _bytes_of(self, message: _Message) -> bytes:
        now = self._ledger.epoch + time.monotonic()
        return b"%b%bX-Request-Start: t=%.6f\r\n\r\n%b" % (message.head, self._authorization, now, message.body)

    def _read_token(self) -> bytes:
        if any(name.lower() == "authorization" for name in self.load.headers):
            return b""
        token = self.load.tokens.token("inference")
        return f"Authorization: Bearer {token}\r\n".encode() if token else b""

    def _token_changed(self) -> bool:
        before = self._authorization
        with contextlib.suppress(ServerError):  # the key file cannot be read just now; the old token may still hold
            self._authorization = self._read_token()
        self._counts.new_tokens += before != self._authorization
        return before != self._authorization

    async def _keep_token(self) -> None:
        while not isinstance(self.load.tokens, FixedToken):
            await asyncio.sleep(1)
            self._token_changed()

    async def _keep_telling(self) -> None:
        while self._tell is not None:
            await asyncio.sleep(SECONDS_BETWEEN_PROGRESS)
            self._tell(self._ledger.progress(time.monotonic()))

    def _outcome(self, ledger: Ledger, cpu: float) -> Outcome:
        now = time.monotonic()
        samples = ledger.samples()
        good = samples.ok
        return Outcome(
            started=datetime.fromtimestamp(ledger.start + ledger.epoch, timezone.utc).isoformat(),
            seconds=(ledger.stop if self._by_clock else max(ledger.last, ledger.start + 1e-9)) - ledger.start,
            answered=ledger.answered if self._by_clock else int(good.sum()),
            answered_items=ledger.items if self._by_clock else float(samples.items[good].sum()),
            samples=samples,
            errors=ledger.failures(),
            generator={
                "cpu": round(cpu / (now - ledger.begin), 4),
                "lateness": ledger.lateness(),
                "connections": self._counts.connections,
                "reconnects": self._counts.reconnects,
                "resent": self._counts.resent,
                "new_tokens": self._counts.new_tokens,
                "waited_for_connection": self._counts.waited_for_connection,
            },
            warm_up={"seconds": self.load.warm_up, "requests": ledger.warm_up, "failed": ledger.warm_up_failed},
        )


def message_of(load: Load, body: Body) -> _Message:
    """A request but for its token and its time."""
    method = "POST" if body.content else "GET"
    fields = {"Host": load.address.netloc, **load.headers}
    if body.content:
        fields |= {"Content-Type": body.content_type, "Content-Length": str(len(body.content))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return _Message(f"{method} {load.address.path} HTTP/1.1\r\n{lines}".encode(), body.content, body.items)


def no_connection(error: OSError) -> str:
    """Why there is no connection, in a few words."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return error.strerror or str(error) or type(error).__name__
