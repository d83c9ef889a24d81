"""Signals that end a program which has started a server."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS: list[signal.Signals] = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
]


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end as Ctrl-C does; only the first counts, so that cleaning up is not interrupted.

    Put it around ``with Server.start(...)`` in a script: Python ends at once on SIGTERM otherwise, and the
    server stays. To be used in the main thread, as Python demands for signals.
    """

    def first(_number: int, _frame: FrameType | None) -> None:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    # nohup ignores SIGHUP, and means it.
    heard = [one for one in SIGNALS if not (one.name == "SIGHUP" and signal.getsignal(one) == signal.SIG_IGN)]
    before = {one: signal.signal(one, first) for one in heard}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
