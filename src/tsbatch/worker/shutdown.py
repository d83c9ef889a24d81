"""Close what a handler opened, in every way that a worker can notice its shutdown.

TorchServe does not ask a worker to exit: it closes the socket and immediately sends SIGKILL
(frontend/server/.../wlm/WorkLoadManager.java). A few milliseconds pass in between. An idle worker notices the closed
socket and exits, which runs ``atexit``; a busy worker does not look at it, so a thread watches the socket. The same
thread notices a batch that reaches responseTimeout, which TorchServe does not announce either. SIGTERM and Ctrl-C
are handled too. docs/closing.md shows how often this is enough.
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
"""An idle worker exits by itself within this time after closing; a busy one would compute for no one."""
SERVER_MARK = "TSBATCH_SERVER"
"""The environment variable by which `tsbatch stop` finds the processes of a server (system/processes.py)."""
RESERVED = 0.2
"""Fraction of responseTimeout, at most one second, that is reserved for closing."""


class Closer:
    """Resources to close when the worker exits; each is closed exactly once."""

    def __init__(self) -> None:
        self._callbacks = ExitStack()
        self._turn = threading.RLock()
        self._limit: float | None = None
        self._due: float | None = None
        self._watching = False
        self._wanted = False
        self._shells: list[subprocess.Popen[bytes]] = []

    def add(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` when the worker exits, in reverse order of registration."""
        self._wanted = True
        self._callbacks.callback(callback)

    def when_gone(self, command: Sequence[str]) -> None:
        """Run ``command`` once this process is gone; see :func:`when_gone`."""
        self._shells.append(when_gone(command))

    def close(self) -> None:
        """Close everything that was registered. A second call does nothing, but waits for a running one."""
        with self._turn:
            self._callbacks.close()

    def allow(self, response_timeout: Any) -> None:
        """Set the time limit of a batch, in seconds; None or an invalid value means no limit.

        TorchServe kills the worker if a batch takes longer. If there is something to close, the worker exits shortly
        before that, so that it can.
        """
        known = isinstance(response_timeout, int) and response_timeout > 0
        self._limit = response_timeout - min(1.0, RESERVED * response_timeout) if known else None

    @contextmanager
    def on_duty(self, connection: Any) -> Iterator[None]:
        """Watch the connection to the server (from the first batch on) and the time while a batch is computed."""
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
        """Return the seconds until a batch may be overdue; exit the process if one is."""
        due = self._due
        if due is None:
            return self._limit
        left = due - time.monotonic()
        if left <= 0:
            logger.error("a batch is about to exceed responseTimeout; closing before TorchServe kills this worker")
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
    """Call ``close`` at interpreter exit and on SIGTERM, then let the signal take its default effect."""
    atexit.register(close)
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return  # not our process, or not our signal

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
    """Call ``close`` as soon as the peer of ``connection`` is gone, from a thread that sleeps until then.

    Args:
        connection: the socket of the worker; ignored if it has no file descriptor.
        close: the callback; calling it twice must do nothing.
        meanwhile: called first, and again after the number of seconds that it returns; None for never.
    """
    try:
        number = connection.fileno()
    except (AttributeError, OSError):
        return
    if number < 0 or not _HANG_UP:  # no poll on this platform: only the exit of an idle worker is left
        return

    def watch() -> None:
        poll = select.poll()
        poll.register(number, _HANG_UP)
        while not poll.poll(_milliseconds(meanwhile())):
            pass
        close()

    with suppress(RuntimeError):  # no thread available: only the exit of an idle worker is left
        threading.Thread(target=watch, name="tsbatch-hang-up", daemon=True).start()


def _milliseconds(seconds: float | None) -> int | None:
    # Rounded up, so that it is not called too early.
    return None if seconds is None else int(seconds * 1000) + 1


def when_gone(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Run ``command`` after this process is gone, even after SIGKILL.

    A small shell waits for the end of a pipe that only this process holds open.

    Args:
        command: program and arguments, as for subprocess; the output is discarded.

    Returns:
        The shell process; keep a reference to it.

    Raises:
        OSError: there is no ``/bin/sh``, as on Windows.
    """
    # No other child inherits the writing end (PEP 446), and only the end of this process closes it.
    reader, _writer = os.pipe()
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; exec "$@"', "tsbatch-when-gone", *command],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # `tsbatch stop` kills every process with the server's mark, which would stop the shell too early.
            env={name: value for name, value in os.environ.items() if name != SERVER_MARK},
            start_new_session=True,
        )
    finally:
        os.close(reader)
