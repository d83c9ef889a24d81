"""The load generator in a process of its own: whoever shows how it goes must not make it late."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

from tsbatch.bench.load_generator import Generator, Load, Outcome
from tsbatch.bench.request_log import Progress
from tsbatch.bench.send_times import punctual_loop
from tsbatch.errors import ServerError

SECONDS_BETWEEN_LOOKS: Final = 0.5


def generate(
    load: Load, tell: Callable[[Progress], None] | None = None, look: Callable[[], None] | None = None
) -> Outcome:
    """Do a load in another process and wait for it.

    Args:
        load: what to do.
        tell: told how it goes, twice a second.
        look: called as often, to watch the server meanwhile.

    Raises:
        ServerError: the server cannot be reached, or fails every request from the first.
        UsageError: it refuses every request from the first.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(load, there), name="tsbatch-load", daemon=True)
    child.start()
    there.close()
    try:
        return _follow(here, tell, look)
    except EOFError:
        child.join(5)
        raise ServerError(f"the load generator's process ended by itself (exit code {child.exitcode})") from None
    finally:
        child.terminate()
        child.join()
        child.close()
        here.close()


def _follow(here: Connection, tell: Callable[[Progress], None] | None, look: Callable[[], None] | None) -> Outcome:
    while True:
        if here.poll(SECONDS_BETWEEN_LOOKS):
            said = here.recv()
            if isinstance(said, Outcome):
                return said
            if isinstance(said, Exception):
                raise said
            if tell:
                tell(said)
        if look:
            look()


def _work(load: Load, there: Connection) -> None:
    # Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A collection would stop the clock for everybody; there is nothing in circles here that grows.
    gc.freeze()
    gc.disable()
    loop = punctual_loop()

    def tell(progress: Progress) -> None:
        try:
            there.send(progress)
        except OSError:  # the parent was killed; a load that nobody asked for any more must not go on
            os._exit(1)

    try:
        there.send(loop.run_until_complete(_generate(load, tell)))
    except Exception as error:  # told where somebody can read it
        there.send(error)
    finally:
        loop.close()


async def _generate(load: Load, tell: Callable[[Progress], None]) -> Outcome:
    return await Generator(load, tell).run()
