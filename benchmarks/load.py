"""A lightweight closed-loop load generator: each connection sends its next request when the last one is answered.

It runs in a separate process, so that it competes with the server for a core but not for a lock, and sends prepared
bytes, so that it uses little CPU. It reads complete requests from standard input and sends them in order, starting over
after the last. It prints one JSON object, see :class:`Figures`.
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
    """The figures of one run; times are in milliseconds except ``seconds``.

    Attributes:
        requests: answers that were counted.
        answers: all answers, including those during the warm-up and after the end.
        seconds: the measured time.
        rate: answers per second.
        mean, p50, p99: latency from sending a request to receiving its complete answer.
        cpu: cores that this process used in that time.
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

    The clock starts after ``warm_up`` answers. It stops at the first whole number of rounds of ``round_size`` answers
    after at least ``seconds``, so every round is the same work. The run then waits for the requests in flight, so that
    the server is idle when the next run starts.

    Args:
        requests: complete requests, head and body.
        round_size: answers in a round.
        warm_up: answers before the clock starts.
        seconds: the minimum time to measure.
    """

    def __init__(self, requests: Sequence[bytes], round_size: int, warm_up: int = 0, seconds: float = 0.0) -> None:
        self.requests = cycle(requests)
        self.round_size, self.warm_up, self.seconds = round_size, warm_up, seconds
        self.in_flight = self.answers = 0
        self.milliseconds: list[float] = []
        self.started = self.stopped = self.cpu = 0.0
        self.measuring = self.over = False
        self.done = asyncio.get_running_loop().create_future()

    def begin(self) -> None:
        """Start the clock."""
        self.measuring, self.started, self.cpu = True, time.perf_counter(), time.process_time()

    def next_request(self) -> bytes | None:
        """Return the next request to send, or None if the run is over."""
        if self.over:
            return None
        self.in_flight += 1
        return next(self.requests)

    def answered(self, milliseconds: float) -> None:
        """Count an answer and its latency."""
        self.in_flight -= 1
        self.answers += 1
        if self.measuring:
            self.milliseconds.append(milliseconds)
            self._check_clock()
        elif not self.over:
            self.warm_up -= 1
            if self.warm_up <= 0:
                self.begin()
        if self.over and not self.in_flight and not self.done.done():
            self.done.set_result(None)

    def _check_clock(self) -> None:
        now = time.perf_counter()
        if len(self.milliseconds) % self.round_size == 0 and now - self.started >= self.seconds:
            self.stopped, self.cpu = now, time.process_time() - self.cpu
            self.measuring, self.over = False, True

    def fail(self, why: str) -> None:
        """End the run, because figures that include failures would be meaningless."""
        if not self.done.done():
            self.done.set_exception(SystemExit(f"load: {why}"))

    def figures(self) -> Figures:
        """Compute the figures after the run."""
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
        """Send the next request unless the run is over."""
        request = self.load.next_request()
        if request is not None:
            self.sent = time.perf_counter()
            self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Collect the answer; once it is complete, send the next request."""
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
        """Fail because the server closed the connection."""
        self.load.fail(f"the server closed the connection: {error}")


def is_whole(head: bytes, body: bytes) -> bool:
    """Check whether an answer's body is complete; without a length or chunks it never is."""
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
    """Split ``data`` into its complete requests."""
    start = 0
    while start < len(data):
        body = data.index(b"\r\n\r\n", start) + 4
        length = LENGTH.search(data, start, body)
        assert length, "a request has no Content-Length header"
        stop = body + int(length[1])
        yield data[start:stop]
        start = stop


def main(words: list[str]) -> None:
    """Run the load that ``words`` describe."""
    parser = argparse.ArgumentParser(description="Send requests over keep-alive connections.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--requests", type=int, required=True, help="answers per round; whole rounds are measured")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--warm-up", type=int, default=0, help="answers before the clock starts")
    parser.add_argument("--seconds", type=float, default=0.0, help="minimum time to measure")
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
