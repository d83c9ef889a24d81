"""Close what a handler opened, however the worker can be told to end.

TorchServe does not tell a worker to end: it closes the socket and at once sends SIGKILL
(frontend/server/.../wlm/WorkLoadManager.java). Between the two lie some milliseconds. An idle worker sees the
end of the socket and exits, which runs ``atexit``; a busy one would not look, so a thread watches the socket for
it. That thread also sees a batch run into responseTimeout, of which nobody tells the worker at all. SIGTERM and
Ctrl-C are caught too. docs/closing.md tells how often that is enough.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

logger = logging.getLogger("tsbatch")

_HANG_UP = getattr(select, "POLLHUP", 0) | getattr(select, "POLLRDHUP", 0)
SECONDS_TO_LEAVE = 0.5
"""After closing, an idle worker has left by itself within this time; a busy one would go on for nobody."""
SERVER_MARK = "TSBATCH_SERVER"
"""By this variable `tsbatch stop` finds the processes of a server (ops/processes.py)."""
SPARED = 0.2
"""Share of responseTimeout, at most one second, that is kept for closing."""


class Closer:
    """What to close when the worker ends; each is closed once, whoever asks first."""

    def __init__(self) -> None:
        self._callbacks = ExitStack()
        self._turn = threading.RLock()
        self._limit: float | None = None
        self._due: float | None = None
        self._watching = False
        self._wanted = False
        self._shells: list[subprocess.Popen[bytes]] = []

    def add(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` when the worker ends; what was added last comes first."""
        self._wanted = True
        self._callbacks.callback(callback)

    def when_gone(self, command: Sequence[str]) -> None:
        """Run ``command`` once this process is gone; see :func:`when_gone`."""
        self._shells.append(when_gone(command))

    def close(self) -> None:
        """Close everything that was added. Calling it again does nothing, but waits for a closing under way."""
        with self._turn:
            self._callbacks.close()

    def allow(self, response_timeout: Any) -> None:
        """Let a batch take at most this long, in seconds; None or nonsense for as long as it likes.

        TorchServe kills the worker of a batch that takes longer. Where something is to be closed, the worker ends
        itself shortly before, so that it can.
        """
        known = isinstance(response_timeout, int) and response_timeout > 0
        self._limit = response_timeout - min(1.0, SPARED * response_timeout) if known else None

    @contextmanager
    def on_duty(self, connection: Any) -> Iterator[None]:
        """While a batch is computed: watch the connection to the server, from the first batch on, and the time."""
        if not self._watching:
            self._watching = True
            close_on_hang_up(connection, self._leave, meanwhile=self._check_time)
        if self._limit is not None and self._wanted:
            self._due = time.monotonic() + self._limit
        try:
            yield
        finally:
            self._due = None

    def _check_time(self) -> float | None:
        """Seconds until a batch may be overdue (one that starts later is due later); does not return when one is."""
        due = self._due
        if due is None:
            return self._limit
        left = due - time.monotonic()
        if left <= 0:
            logger.error("a batch takes as long as responseTimeout; closing before TorchServe kills this worker")
            self._close_quietly()
            os._exit(1)
        return left

    def _leave(self) -> None:
        self._close_quietly()
        main = threading.main_thread()
        main.join(SECONDS_TO_LEAVE)
        if main.is_alive():
            os._exit(1)

    def _close_quietly(self) -> None:
        try:
            self.close()
        except Exception:
            logger.exception("closing failed")


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


def close_on_hang_up(
    connection: Any, close: Callable[[], None], *, meanwhile: Callable[[], float | None] = lambda: None
) -> None:
    """Call ``close`` as soon as the other end of ``connection`` is gone, from a thread that sleeps until then.

    Args:
        connection: the worker's socket; anything without a file number is ignored.
        close: what to call; a second call of it must do nothing.
        meanwhile: called before that too, and again after the seconds that it returns; None for never.
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
        while not poll.poll(_milliseconds(meanwhile())):
            pass
        close()

    with suppress(RuntimeError):  # no thread to be had: the idle worker's exit has to do
        threading.Thread(target=watch, name="tsbatch-hang-up", daemon=True).start()


def _milliseconds(seconds: float | None) -> int | None:
    # Rounded up, or it would be asked again too early.
    return None if seconds is None else int(seconds * 1000) + 1


def when_gone(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Run ``command`` once this process is gone, whatever ended it, SIGKILL included.

    A small shell waits for the end of a pipe that only this process holds open.

    Args:
        command: program and arguments, as for subprocess; its output goes nowhere.

    Returns:
        The shell, to be kept.

    Raises:
        OSError: there is no ``/bin/sh``, as on Windows.
    """
    # No other child inherits the writing end (PEP 446), and it is never closed: that is left to our end.
    reader, _writer = os.pipe()
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; exec "$@"', "tsbatch-when-gone", *command],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # `tsbatch stop` kills whatever carries the server's mark, and would kill the shell before its work is done.
            env={name: value for name, value in os.environ.items() if name != SERVER_MARK},
            start_new_session=True,
        )
    finally:
        os.close(reader)
