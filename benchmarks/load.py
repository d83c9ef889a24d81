"""A thin closed-loop load: each connection sends its next request when the last one is answered.

A process of its own, so that it competes with the server for a core but not for a lock, and raw bytes, so that it
costs the server's machine little. Prints one JSON object: requests, seconds and requests per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class Load:
    """One run against one address.

    Args:
        request: the whole request, head and body.
        requests: how many to send.
    """

    def __init__(self, request: bytes, requests: int) -> None:
        self.request = request
        self.to_send = requests
        self.to_answer = requests
        self.done = asyncio.get_running_loop().create_future()

    def answered(self) -> None:
        """One more answer is there."""
        self.to_answer -= 1
        if self.to_answer == 0:
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        """End the run: a figure with failures in it would not be one."""
        if not self.done.done():
            self.done.set_exception(SystemExit(f"load: {why}"))


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start sending."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.send()

    def send(self) -> None:
        """The next request, if there is one left."""
        if self.load.to_send:
            self.load.to_send -= 1
            self.transport.write(self.load.request)

    def data_received(self, data: bytes) -> None:
        """Take what came; a whole answer makes room for the next request."""
        self.answer += data
        head, gap, body = self.answer.partition(b"\r\n\r\n")
        length = LENGTH.search(head + b"\r\n")
        if not gap or not length or len(body) < int(length[1]):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self.load.fail(f"got {self.answer[:300].decode('latin-1')!r}")
            return
        self.answer = b""
        self.load.answered()
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        """The server hung up."""
        if self.load.to_answer:
            self.load.fail(f"the server hung up: {error}")


async def run(host: str, port: int, request: bytes, requests: int, connections: int) -> float:
    """Send ``requests`` over ``connections`` and return the seconds it took."""
    load = Load(request, requests)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    transports = [(await loop.create_connection(lambda: Connection(load), host, port))[0] for _ in range(connections)]
    await load.done
    seconds = time.perf_counter() - started
    for transport in transports:
        transport.abort()
    return seconds


def main(words: list[str]) -> None:
    """Run the load that ``words`` describe; the request comes from standard input."""
    parser = argparse.ArgumentParser(description="Send one request many times over keep-alive connections.")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--connections", type=int, default=64)
    chosen = parser.parse_args(words)
    request = sys.stdin.buffer.read()
    seconds = asyncio.run(run(chosen.host, chosen.port, request, chosen.requests, chosen.connections))
    figures = {"requests": chosen.requests, "seconds": seconds, "rate": chosen.requests / seconds}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
