"""The pytest plugin: run handlers in tests as TorchServe would.

::

    def test_my_handler(handler_runner):
        runner = handler_runner(MyHandler, "models/mine", settings={"handler": {"top_k": 3}})
        assert runner.predict_one("hello").json() == {"label": "greeting"}
        assert_batch_invariant(runner, ["a", "a longer text", "the longest text of them all"])

pytest loads this module in every run, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from tsbatch.emulation.runner import HandlerRunner
    from tsbatch.testing.invariance import assert_batch_invariant

__all__ = ["RunnerFactory", "assert_batch_invariant", "handler_runner"]


class RunnerFactory(Protocol):
    """The type of the fixture ``handler_runner``."""

    def __call__(self, handler: type | str | Path, *arguments: Any, **options: Any) -> HandlerRunner:
        """Create a runner that is closed when the test ends.

        Args:
            handler: a handler class, the path of a ``.mar``, or the path of a folder with the contents of an archive.
            *arguments: for a class, its ``model_dir``.
            **options: as for ``HandlerRunner.from_class`` and ``HandlerRunner.from_mar``.
        """


@pytest.fixture
def handler_runner() -> Iterator[RunnerFactory]:
    """A factory of ``HandlerRunner``: from a class and its model folder, or an archive (:class:`RunnerFactory`)."""
    from tsbatch.emulation.runner import HandlerRunner

    with ExitStack() as runners:

        def make(handler: type | str | Path, *arguments: Any, **options: Any) -> HandlerRunner:
            build = HandlerRunner.from_class if isinstance(handler, type) else HandlerRunner.from_mar
            return runners.enter_context(build(handler, *arguments, **options))  # type: ignore[arg-type]

        yield make


def __getattr__(name: str) -> Any:
    if name == "assert_batch_invariant":
        from tsbatch.testing.invariance import assert_batch_invariant

        return assert_batch_invariant
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
