"""The documented import path of the pytest helpers; the code is in :mod:`tsbatch.testing.pytest_plugin`.

Nothing heavy is imported before it is used: pytest may load this in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tsbatch.testing import pytest_plugin
from tsbatch.testing.pytest_plugin import RunnerFactory, handler_runner

if TYPE_CHECKING:
    from tsbatch.testing.invariance import assert_batch_invariant

__all__ = ["RunnerFactory", "assert_batch_invariant", "handler_runner"]


def __getattr__(name: str) -> Any:
    return getattr(pytest_plugin, name)
