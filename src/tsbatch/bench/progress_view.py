"""Live progress of a load test: a progress bar on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from tsbatch.bench.request_log import Progress
from tsbatch.system import console


@contextlib.contextmanager
def progress_view(seconds: float | None) -> Iterator[Callable[[str, Progress], None]]:
    """Show the progress of one load after the other.

    Args:
        seconds: duration of each load; None if unknown.

    Yields:
        A function that shows the progress of the load with this title.
    """
    current, step, shown = "", None, 0.0
    with contextlib.ExitStack() as stack:

        def show(title: str, progress: Progress) -> None:
            nonlocal current, step, shown
            if step is None or title != current:
                finish()
                current, shown = title, 0.0
                step = stack.enter_context(console.progress(title, seconds))
            if not console.console.is_terminal:
                # Each new text would be a line of its own.
                if time.monotonic() - shown < console.SECONDS_BETWEEN_LINES:
                    return
                shown = time.monotonic()
            step.done = min(round(progress.seconds, 1), seconds or float("inf"))
            step.describe(f"{title}: {describe(progress)}")

        def finish() -> None:
            if step is not None:
                step.description = current  # the last live figures are not a result
            stack.close()

        try:
            yield show
        finally:
            finish()


def describe(progress: Progress) -> str:
    """One line of live figures."""
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
