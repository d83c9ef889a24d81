"""Clean shutdown on SIGTERM and SIGHUP."""

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
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt; later signals are ignored, so they cannot interrupt the cleanup.

    Put it around ``with Server.start(...)`` in a script: without it, Python ends at once on SIGTERM and leaves the
    server running. Python allows signal handlers in the main thread only.
    """

    def first(_number: int, _frame: FrameType | None) -> None:
        for one in SIGNALS:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    # Under nohup SIGHUP is ignored, and stays so.
    handled = [one for one in SIGNALS if not (one.name == "SIGHUP" and signal.getsignal(one) == signal.SIG_IGN)]
    before = {one: signal.signal(one, first) for one in handled}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
