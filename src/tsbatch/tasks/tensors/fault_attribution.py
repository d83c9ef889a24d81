"""Whose fault it is when a model raises: what it has answered before tells.

A model may declare nothing, and then the first to see that an input has a wrong shape is the model. It raises for its
own faults too. So an item is blamed when it differs in shape or type from all that the model has answered, and it has
answered something, be it the warm-up's example or another item of the batch; the model is blamed otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from tsbatch.errors import Unprocessable
from tsbatch.tasks.shared.task_handler import first_line
from tsbatch.tasks.tensors.inputs import Array, shown

Kind = tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]
"""Name, shape and type of each array of an item."""

KEPT: Final = 256
"""Kinds that are remembered: where sizes are open there is no end to them."""
SHOWN: Final = 3
"""Kinds that a message names."""


def kind_of(names: Sequence[str], arrays: Sequence[Array]) -> Kind:
    """The kind of an item."""
    return tuple((name, array.shape, array.dtype) for name, array in zip(names, arrays, strict=True))


class Answered:
    """The kinds of items that a model has answered since it was loaded."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, None] = {}

    def update(self, kinds: Iterable[Kind]) -> None:
        """Remember what was answered."""
        for kind in kinds:
            if len(self._kinds) < KEPT:
                self._kinds[kind] = None

    def blame(self, kind: Kind, error: Exception) -> Unprocessable | None:
        """What to tell the sender of an item for which, alone, the model raised; None where it is not the item's fault.

        Args:
            kind: the item's.
            error: what the model raised.
        """
        if not self._kinds or kind in self._kinds:
            return None
        known = list(self._kinds)[:SHOWN]
        return Unprocessable(
            f"the model raised for an item of {_named(kind)}: {_said(error)[:300]}",
            expected=f"what it has answered already: {' or '.join(map(_named, known))}",
        )


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    # TorchScript tells first where in its own code, and at last what.
    return lines[-1].strip() if lines and "TorchScript" in lines[0] else first_line(error)


def _named(kind: Kind) -> str:
    several = len(kind) > 1
    return ", ".join(f"{name + ' ' if several else ''}{shown(shape)} {dtype}" for name, shape, dtype in kind)
