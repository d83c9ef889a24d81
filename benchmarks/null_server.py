"""A server that answers immediately or stalls on purpose, for measuring load generators.

    python benchmarks/null_server.py [--port 0] [--delay MS] [--stall SECONDS --every SECONDS]

It prints the port that it listens on, and serves until its standard input ends. During a stall it answers nothing; the
requests received meanwhile are answered when the stall ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Final

from tsbatch.bench.send_times import punctual_loop

ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Stalls:
    """The times without answers: ``stall`` seconds, once every ``every`` seconds.

    Args:
        delay: seconds that an answer takes outside stalls.
        stall: the duration of a stall, 0 for no stalls.
        every: seconds from the start of one stall to the next.
    """

    def __init__(self, delay: float, stall: float, every: float) -> None:
        self.delay, self.stall, self.every = delay, stall, every
        self.began = time.monotonic()

    def wait(self) -> float:
        """Compute the seconds until a request received now is answered."""
        phase = (time.monotonic() - self.began + self.delay) % self.every
        left = phase - (self.every - self.stall)
        return self.delay + (self.stall - left if self.stall and left >= 0 else 0.0)


class Null(asyncio.Protocol):
    """One connection."""

    def __init__(self, stalls: Stalls) -> None:
        self.stalls = stalls
        self.request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer once the request is complete."""
        self.request += data
        head, gap, body = self.request.partition(b"\r\n\r\n")
        length = head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
        if not gap or len(body) < int(length or 0):
            return
        self.request = b""
        wait = self.stalls.wait()
        if wait:
            asyncio.get_running_loop().call_later(wait, self.transport.write, ANSWER)
        else:
            self.transport.write(ANSWER)


async def serve(port: int, stalls: Stalls) -> None:
    """Serve on 127.0.0.1 until standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Null(stalls), "127.0.0.1", port, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(description="Run a server that answers immediately or stalls on purpose.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0, help="milliseconds that an answer takes")
    parser.add_argument(
        "--stall", type=float, default=0.0, help="duration of a stall in seconds, in which nothing is answered"
    )
    parser.add_argument("--every", type=float, default=10.0, help="seconds from the start of one stall to the next")
    chosen = parser.parse_args()
    loop = punctual_loop()
    loop.run_until_complete(serve(chosen.port, Stalls(chosen.delay / 1000, chosen.stall, chosen.every)))


if __name__ == "__main__":
    main()
