"""A thin closed-loop load: each connection sends its next request when the last one is answered.

A process of its own, so that it competes with the server for a core but not for a lock, and raw bytes, so that it
costs the server's machine little. Requests come from standard input, whole and one after the other; they are sent in
turn, again from the first when all were sent. Prints one JSON object, see :class:`Figures`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from statistics import mean, quantiles

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
LAST_CHUNK = b"\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Figures:
    """What one run gave; times in milliseconds but for ``seconds``.

    Attributes:
        requests: answers that were counted.
        answers: all answers, those of the warm-up and after the end too.
        seconds: the time in which they came.
        rate: answers a second.
        mean, p50, p99: from sending a request to its whole answer.
        cpu: cores that this process used meanwhile.
    """

    requests: int
    answers: int
    seconds: float
    rate: float
    mean: float
    p50: float
    p99: float
    cpu: float


class Load:
    """One run against one address.

    The clock starts when ``warm_up`` answers are there, and stops when those since are a whole number of rounds of
    ``round_size`` and at least ``seconds`` are over; so each round is the same work. What is still on its way then is
    waited for, so that the next run meets an idle server.

    Args:
        requests: whole requests, head and body.
        round_size: answers in a round.
        warm_up: answers before the clock starts.
        seconds: the least time to measure.
    """

    def __init__(self, requests: Sequence[bytes], round_size: int, warm_up: int = 0, seconds: float = 0.0) -> None:
        self.requests = cycle(requests)
        self.round_size, self.warm_up, self.seconds = round_size, warm_up, seconds
        self.waiting = self.answers = 0
        self.milliseconds: list[float] = []
        self.started = self.stopped = self.cpu = 0.0
        self.measuring = self.over = False
        self.done = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Start the clock."""
        self.measuring, self.started, self.cpu = True, time.perf_counter(), time.process_time()

    def next_request(self) -> bytes | None:
        """The next request to send, None when the run is over."""
        if self.over:
            return None
        self.waiting += 1
        return next(self.requests)

    def answered(self, milliseconds: float) -> None:
        """One more answer is there, after so long."""
        self.waiting -= 1
        self.answers += 1
        if self.measuring:
            self.milliseconds.append(milliseconds)
            self._look_at_the_clock()
        elif not self.over:
            self.warm_up -= 1
            if self.warm_up <= 0:
                self.begin()
        if self.over and not self.waiting and not self.done.done():
            self.done.set_result(None)

    def _look_at_the_clock(self) -> None:
        now = time.perf_counter()
        if len(self.milliseconds) % self.round_size == 0 and now - self.started >= self.seconds:
            self.stopped, self.cpu = now, time.process_time() - self.cpu
            self.measuring, self.over = False, True

    def fail(self, why: str) -> None:
        """End the run: a figure with failures in it would not be one."""
        if not self.done.done():
            self.done.set_exception(SystemExit(f"load: {why}"))

    def figures(self) -> Figures:
        """What the run gave, when it is done."""
        seconds = self.stopped - self.started
        times = sorted(self.milliseconds)
        hundredths = quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
        return Figures(
            requests=len(times),
            answers=self.answers,
            seconds=round(seconds, 6),
            rate=len(times) / seconds,
            mean=round(mean(times), 2),
            p50=round(hundredths[49], 2),
            p99=round(hundredths[98], 2),
            cpu=round(self.cpu / seconds, 4),
        )


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.answer = b""
        self.sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start sending."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send()

    def send(self) -> None:
        """The next request, if there is one left."""
        request = self.load.next_request()
        if request is not None:
            self.sent = time.perf_counter()
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Take what came; a whole answer makes room for the next request."""
        self.answer += data
        head, gap, body = self.answer.partition(b"\r\n\r\n")
        if not gap or not is_whole(head + b"\r\n", body):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self.load.fail(f"got {self.answer[:300].decode('latin-1')!r}")
            return
        self.answer = b""
        self.load.answered((time.perf_counter() - self.sent) * 1000)
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        """The server hung up."""
        self.load.fail(f"the server hung up: {error}")


def is_whole(head: bytes, body: bytes) -> bool:
    """Whether all of an answer's body is there; with neither a length nor chunks it never is."""
    if CHUNKED.search(head):
        return body.endswith(LAST_CHUNK)
    length = LENGTH.search(head)
    return length is not None and len(body) >= int(length[1])


async def run(
    host: str,
    port: int,
    requests: Sequence[bytes],
    *,
    round_size: int,
    connections: int,
    warm_up: int = 0,
    seconds: float = 0.0,
) -> Figures:
    """Send ``requests`` over ``connections``; see :class:`Load`."""
    load = Load(requests, round_size, warm_up, seconds)
    loop = asyncio.get_running_loop()
    if not warm_up:
        load.begin()
    transports = [(await loop.create_connection(lambda: Connection(load), host, port))[0] for _ in range(connections)]
    await load.done
    for transport in transports:
        transport.abort()
    return load.figures()


def split_requests(data: bytes) -> Iterator[bytes]:
    """Each of the whole requests in ``data``."""
    start = 0
    while start < len(data):
        body = data.index(b"\r\n\r\n", start) + 4
        length = LENGTH.search(data, start, body)
        assert length, "a request without Content-Length"
        stop = body + int(length[1])
        yield data[start:stop]
        start = stop


def main(words: list[str]) -> None:
    """Run the load that ``words`` describe."""
    parser = argparse.ArgumentParser(description="Send requests over keep-alive connections.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--requests", type=int, required=True, help="answers in a round; whole rounds are measured")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--warm-up", type=int, default=0, help="answers before the clock starts")
    parser.add_argument("--seconds", type=float, default=0.0, help="the least time to measure")
    chosen = parser.parse_args(words)
    figures = asyncio.run(
        run(
            chosen.host,
            chosen.port,
            list(split_requests(sys.stdin.buffer.read())),
            round_size=chosen.requests,
            connections=chosen.connections,
            warm_up=chosen.warm_up,
            seconds=chosen.seconds,
        )
    )
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    main(sys.argv[1:])
