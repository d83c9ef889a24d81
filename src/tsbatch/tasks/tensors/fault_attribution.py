"""Decide whether the item or the model is at fault when a model raises, by what the model has answered before.

A model may not declare its inputs, and then it is the first to notice that an input has a wrong shape. But it also
raises for its own faults. So the item is at fault if it differs in shape or type from everything that the model has
answered, and the model has answered something: the warm-up's example or another item of the batch. Otherwise the model
is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from tsbatch.batching.memory_cap import is_out_of_memory
from tsbatch.errors import StageFailed, Unprocessable, first_line, reason_of
from tsbatch.tasks.tensors.inputs import Array, render_shape

Kind = tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
"""Name, shape and type of each array of an item."""

MAX_KINDS: Final = 256
"""Kinds that are remembered; with open sizes there is no end to them."""
MAX_LISTED: Final = 3
"""Kinds that a message lists."""


def kind_of(names: Sequence[str], arrays: Sequence[Array]) -> Kind:
    """The kind of an item."""
    return tuple((name, array.shape, array.dtype) for name, array in zip(names, arrays, strict=True))


class AnsweredKinds:
    """The kinds of items that a model has answered since it was loaded."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, None] = {}

    def update(self, kinds: Iterable[Kind]) -> None:
        """Remember kinds that the model has answered."""
        for kind in kinds:
            if len(self._kinds) < MAX_KINDS:
                self._kinds[kind] = None

    def blame(self, kind: Kind, error: Exception) -> Unprocessable | None:
        """The error for the client whose single item made the model raise; None if the model is at fault.

        Args:
            kind: the kind of the item.
            error: what the model raised.
        """
        if not self._kinds or kind in self._kinds:
            return None
        known = list(self._kinds)[:MAX_LISTED]
        return Unprocessable(
            f"the model raised for an item of {_render(kind)}: {_message(error)[:300]}",
            expected=f"what it has answered before: {' or '.join(map(_render, known))}",
        )


def as_stage_error(error: Exception) -> Exception:
    """The error for a fault of the model, without the trace of its code that TorchScript puts into the message."""
    if is_out_of_memory(error):
        return error
    failure = StageFailed(f"inference raised {type(error).__name__}: {_message(error, reason_of)}")
    return failure.with_traceback(error.__traceback__)  # the log tells the place


def _message(error: Exception, otherwise: Callable[[BaseException], str] = first_line) -> str:
    lines = str(error).strip().splitlines()
    # TorchScript first reports where in its code the error occurred, and last what it was.
    return lines[-1].strip() if lines and "TorchScript" in lines[0] else otherwise(error)


def _render(kind: Kind) -> str:
    several = len(kind) > 1
    return ", ".join(f"{name + ' ' if several else ''}{render_shape(shape)} {dtype}" for name, shape, dtype in kind)
