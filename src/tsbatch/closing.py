"""Close what a handler opened, however the worker can be told to end.

TorchServe does not tell a worker to end: it closes the socket and at once sends SIGKILL
(frontend/server/.../wlm/WorkLoadManager.java). Between the two lie some milliseconds. An idle worker sees the
end of the socket and exits, which runs ``atexit``; a busy one would not look, so a thread watches the socket for
it. SIGTERM and Ctrl-C are caught too. docs/closing.md tells how often that is enough.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_HANG_UP = getattr(select, "POLLHUP", 0) | getattr(select, "POLLRDHUP", 0)


def close_when_told(close: Callable[[], None]) -> None:
    """Call ``close`` at interpreter exit and on SIGTERM, then let the signal do what it did."""
    atexit.register(close)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return  # somebody else's process, or somebody else's signal

    def on_signal(number: int, _frame: Any) -> None:
        try:
            close()
        finally:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, on_signal)


def close_on_hang_up(connection: Any, close: Callable[[], None]) -> None:
    """Call ``close`` as soon as the other end of ``connection`` is gone, from a thread that sleeps until then.

    Args:
        connection: the worker's socket; anything without a file number is ignored.
        close: what to call; a second call of it must do nothing.
    """
    try:
        number = connection.fileno()
    except (AttributeError, OSError):
        return
    if number < 0 or not _HANG_UP:  # a platform without poll: the idle worker's exit has to do
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(number, _HANG_UP)
        poll.poll()
        close()

    with suppress(RuntimeError):  # no thread to be had: the idle worker's exit has to do
        threading.Thread(target=watch, name="tsbatch-hang-up", daemon=True).start()
