"""A server on a socket whose connections a test handles itself."""

from __future__ import annotations

import asyncio
import contextlib

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab"


@contextlib.asynccontextmanager
async def serving(handle, *, tls=None):
    """The port of a server; ``handle(reader, writer)`` is called for each connection, which is closed after it."""
    under_way = set()

    async def serve(reader, writer):
        under_way.add(asyncio.current_task())
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        # What waits for its client ends with it.
        await asyncio.wait_for(asyncio.gather(*under_way), 5)


async def read_request(reader):
    """Head and body of the next request; raises IncompleteReadError when there is none."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return head, await reader.readexactly(int(length or 0))
