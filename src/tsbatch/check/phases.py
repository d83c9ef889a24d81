"""Where the time of a load goes: one label holds at a time, and a change of label closes the account of the last.

This file is read by the process that loads the archive, so it imports nothing beyond Python.
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
"""The steps of a BatchHandler's load, and the phases they are reported as."""

ORDER = ("unpack", "python", "CUDA context", IMPORT, INITIALIZE, *STEPS.values())
"""The order in which people read them; a handler also imports later on."""

Told = Callable[[str], None]


class PhaseClock:
    """Adds up seconds by phase.

    Args:
        began: called with a phase's name when it begins.
        ended: called with it when it ends.
        failed: called with it when it ends by an exception.

    Attributes:
        seconds: seconds by phase, in the order in which the phases began.
    """

    def __init__(self, began: Told, ended: Told, failed: Told) -> None:
        self.seconds: dict[str, float] = {}
        self._began, self._ended, self._failed = began, ended, failed
        self._labels: list[str] = []
        self._since = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block's time is this phase's, but for the phases inside it."""
        self._began(name)
        try:
            with self._label(name):
                yield
        except BaseException:
            self._failed(name)
            raise
        self._ended(name)

    @contextmanager
    def _label(self, name: str) -> Iterator[None]:
        self._close_account()
        self.seconds.setdefault(name, 0.0)
        self._labels.append(name)
        try:
            yield
        finally:
            self._close_account()
            self._labels.pop()

    def _close_account(self) -> None:
        now = time.perf_counter()
        if self._labels:
            self.seconds[self._labels[-1]] += now - self._since
        self._since = now

    @contextmanager
    def watching_imports(self) -> Iterator[None]:
        """Whatever is imported meanwhile is the phase ``import``'s: many handlers import when they load weights."""
        # The one function that import statements and importlib share; there is no public way to time both.
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
    """Have TorchServe's loader, and a BatchHandler's load, tell the clock which phase they are in."""
    from ts.model_loader import TsModelLoader

    load, load_file = TsModelLoader.load, TsModelLoader._load_handler_file  # noqa: SLF001
    load_own = TsModelLoader._load_default_handler  # noqa: SLF001

    with ExitStack() as stack:

        def timed_load(*arguments: Any, **options: Any) -> Any:
            with clock.phase(INITIALIZE):
                return load(*arguments, **options)

        def timed_file(*arguments: Any) -> Any:
            with clock.phase(IMPORT):
                found = load_file(*arguments)
            _watch_steps(clock, stack)
            return found

        def timed_own(*arguments: Any) -> Any:
            with clock.phase(IMPORT):
                return load_own(*arguments)

        stack.enter_context(_replaced(TsModelLoader, "load", timed_load))
        stack.enter_context(_replaced(TsModelLoader, "_load_default_handler", timed_own))
        stack.enter_context(_replaced(TsModelLoader, "_load_handler_file", timed_file))
        stack.enter_context(clock.watching_imports())
        yield


def _watch_steps(clock: PhaseClock, stack: ExitStack) -> None:
    # Not imported here: a handler that is not ours would pay for it.
    ours: Any = sys.modules.get("tsbatch.handler")
    if ours is None:
        return
    step = ours.BatchHandler._step  # noqa: SLF001

    def timed(handler: Any, name: str, call: Callable[[], Any]) -> Any:
        with clock.phase(STEPS.get(name, name)):
            return step(handler, name, call)

    stack.enter_context(_replaced(ours.BatchHandler, "_step", timed))


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
