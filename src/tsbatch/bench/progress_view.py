"""How a load goes, while it goes: a moving bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import TYPE_CHECKING

from tsbatch.bench.request_log import Progress
from tsbatch.system import console

if TYPE_CHECKING:
    from typing_extensions import Self


class View:
    """Shows one load after the other; used as a context manager.

    Args:
        seconds: how long each takes; None when nobody knows.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._title = ""
        self._step: console.Step | None = None
        self._shown = 0.0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        if self._step is not None:
            self._step.description = self._title  # its last figures are no result
        self._stack.close()

    def tell(self, title: str, progress: Progress) -> None:
        """Show how the load of that name goes."""
        if title != self._title:
            self._end()
            self._title, self._shown = title, 0.0
            self._step = self._stack.enter_context(console.progress(title, self._seconds))
        assert self._step is not None
        if not console.console.is_terminal:
            # Each new text would be a line of its own.
            if time.monotonic() - self._shown < console.SECONDS_BETWEEN_LINES:
                return
            self._shown = time.monotonic()
        self._step.done = min(round(progress.seconds, 1), self._seconds or float("inf"))
        self._step.describe(f"{title}: {describe(progress)}")


def describe(progress: Progress) -> str:
    """What is going on, on one line."""
    words = [f"{progress.rate:.0f} requests/s"]
    if not progress.warm:
        words.insert(0, "warming up")
    if progress.p50 is not None and progress.p99 is not None:
        words.append(f"P50 {progress.p50:.1f} ms, P99 {progress.p99:.1f} ms")
    if progress.batch is not None and progress.capacity is not None:
        words.append(f"batch {progress.batch:.1f}/{progress.capacity:.0f}")
    if progress.failed:
        words.append(f"{progress.failed} failed")
    return ", ".join(words)
