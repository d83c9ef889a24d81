"""Measure where the time of a load goes: exactly one label is active at a time.

The process that loads the archive imports this module, so it imports nothing but the standard library.
"""

from __future__ import annotations

import importlib._bootstrap as bootstrap
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

IMPORT = "import"
INITIALIZE = "initialize"
STEPS = {
    "load_model": "weights",
    "load_tokenizer": "tokenizer",
    "prepare": "prepare",
    "choose_batching": "batching",
    "start_engine": "engine",
    "warm-up": "warm-up",
}
"""The steps of a BatchHandler's load, and the phases that report them."""

ORDER = ("unpack", "python", "CUDA context", IMPORT, INITIALIZE, *STEPS.values())
"""The order in a report; a handler also imports in later phases."""

OnChange = Callable[[str, str], None]


class PhaseClock:
    """Adds up seconds by phase.

    Args:
        on_change: called with ``begin``, ``end`` or, after an exception, ``failed``, and the phase's name.

    Attributes:
        seconds: seconds by phase, in the order in which they began.
    """

    def __init__(self, on_change: OnChange) -> None:
        self.seconds: dict[str, float] = {}
        self._on_change = on_change
        self._labels: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time as this phase, except for the phases inside it."""
        self._on_change("begin", name)
        try:
            with self._label(name):
                yield
        except BaseException:
            self._on_change("failed", name)
            raise
        self._on_change("end", name)

    @contextmanager
    def _label(self, name: str) -> Iterator[None]:
        self._add_elapsed()
        self.seconds.setdefault(name, 0.0)
        self._labels.append(name)
        try:
            yield
        finally:
            self._add_elapsed()
            self._labels.pop()

    def _add_elapsed(self) -> None:
        now = time.perf_counter()
        if self._labels:
            self.seconds[self._labels[-1]] += now - self._since
        self._since = now

    @contextmanager
    def watching_imports(self) -> Iterator[None]:
        """Count all imports in the block as the phase ``import``: many handlers import while they load weights."""
        # Import statements and importlib share only this function; there is no public way to time both.
        find: Callable[..., Any] = bootstrap._find_and_load  # type: ignore[attr-defined]  # noqa: SLF001

        def timed(*arguments: Any) -> Any:
            if self._labels and self._labels[-1] == IMPORT:
                return find(*arguments)
            with self._label(IMPORT):
                return find(*arguments)

        with _replaced(bootstrap, "_find_and_load", timed):
            yield


@contextmanager
def watching_load(clock: PhaseClock) -> Iterator[None]:
    """Make TorchServe's loader and a BatchHandler's load report their phases to the clock."""
    from ts.model_loader import TsModelLoader

    with ExitStack() as stack:

        def time_method(name: str, phase: str) -> None:
            original = getattr(TsModelLoader, name)

            def timed(*arguments: Any, **options: Any) -> Any:
                with clock.phase(phase):
                    found = original(*arguments, **options)
                if name == "_load_handler_file":
                    _watch_steps(clock, stack)
                return found

            stack.enter_context(_replaced(TsModelLoader, name, timed))

        time_method("load", INITIALIZE)
        time_method("_load_default_handler", IMPORT)
        time_method("_load_handler_file", IMPORT)
        stack.enter_context(clock.watching_imports())
        yield


def _watch_steps(clock: PhaseClock, stack: ExitStack) -> None:
    # Not imported here: another handler's load would include the time for it.
    module: Any = sys.modules.get("tsbatch.handler")
    if module is None:
        return
    step = module.BatchHandler._step  # noqa: SLF001

    def timed(handler: Any, name: str, call: Callable[[], Any]) -> Any:
        with clock.phase(STEPS.get(name, name)):
            return step(handler, name, call)

    stack.enter_context(_replaced(module.BatchHandler, "_step", timed))


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
