"""Wait for something that can only be asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float = math.inf, *, interval: float = 0.1) -> T:
    """Call ``condition`` until its result is true or the time is up, and return its last result.

    Args:
        condition: called at least once.
        seconds: how long to wait.
        interval: seconds between two calls.
    """
    deadline = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < deadline:
        time.sleep(interval)
    return result
