"""Free ports on this machine."""

from __future__ import annotations

import os
import random
import socket

from tsbatch.errors import ServerError

LOWEST, HIGHEST = 20_000, 32_000
"""Below the ports that systems give to outgoing connections (Linux from 32768, others from 49152)."""


def free_ports(count: int, *, consecutive: bool = False) -> list[int]:
    """Find ports on which no program listens now.

    Args:
        count: how many.
        consecutive: in one block, as TorchServe needs for its workers.

    Raises:
        ServerError: there are not enough.
    """
    if consecutive:
        for _ in range(100):
            first = random.randrange(LOWEST, HIGHEST - count)
            block = list(range(first, first + count))
            if all(map(is_free, block)):
                return block
    else:
        found = [port for port in random.sample(range(LOWEST, HIGHEST), count + 200) if is_free(port)]
        if len(found) >= count:
            return found[:count]
    raise ServerError(f"no {count} free ports between {LOWEST} and {HIGHEST}; stop programs that listen there")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a program could listen on this port now."""
    with socket.socket() as probe:
        if os.name == "posix":
            # As Java does there: a port can be used again while its last connections are closing.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
