"""Run the load generator in its own process, so that showing progress does not delay requests."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

from tsbatch.bench.load_generator import Generator, Load
from tsbatch.bench.request_log import Progress
from tsbatch.bench.result_file import Run
from tsbatch.bench.send_times import punctual_loop
from tsbatch.errors import ServerError

POLL_SECONDS: Final = 0.5


def generate(
    load: Load, on_progress: Callable[[Progress], None] | None = None, poll: Callable[[], None] | None = None
) -> Run:
    """Run a load in another process and wait for it.

    Args:
        load: the requests to send.
        on_progress: called twice a second.
        poll: called as often, to watch the server meanwhile.

    Raises:
        ServerError: the server is unreachable, or the first requests all fail.
        UsageError: the server rejects the first requests.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(load, sender), name="tsbatch-load", daemon=True)
    child.start()
    sender.close()
    try:
        while True:
            if receiver.poll(POLL_SECONDS):
                message = receiver.recv()
                if isinstance(message, Run):
                    return message
                if isinstance(message, Exception):
                    raise message
                if on_progress:
                    on_progress(message)
            if poll:
                poll()
    except EOFError:
        child.join(5)
        raise ServerError(f"the load generator's process ended by itself (exit code {child.exitcode})") from None
    finally:
        child.terminate()
        child.join()
        child.close()
        receiver.close()


def _work(load: Load, sender: Connection) -> None:
    # The parent handles Ctrl-C and terminates this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A garbage collection would delay all requests, and no reference cycles accumulate here.
    gc.freeze()
    gc.disable()

    def on_progress(progress: Progress) -> None:
        try:
            sender.send(progress)
        except OSError:  # the parent was killed, so the load must stop
            os._exit(1)

    async def run() -> Run:
        return await Generator(load, on_progress).run()

    with contextlib.closing(punctual_loop()) as loop:
        try:
            sender.send(loop.run_until_complete(run()))
        except Exception as error:  # raised again in the parent
            sender.send(error)
