"""Free ports on this machine."""

from __future__ import annotations

import os
import random
import socket

from tsbatch.errors import ServerError

LOWEST, HIGHEST = 20_000, 32_000
"""Below the ports that outgoing connections get (Linux from 32768, others from 49152), which come and go."""


def free_ports(count: int, *, consecutive: bool = False) -> list[int]:
    """Ports on which nobody listens now.

    Args:
        count: how many.
        consecutive: one after the other, as TorchServe's worker ports are.

    Raises:
        ServerError: when no free ones were found.
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
    raise ServerError(f"found no {count} free ports between {LOWEST} and {HIGHEST}")


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether one could listen there now."""
    with socket.socket() as probe:
        if os.name == "posix":
            # As Java does there: a port whose last connections are just closing can be used.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
