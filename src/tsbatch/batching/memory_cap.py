"""Back off when a forward pass does not fit into memory, and remember what did fit."""

from __future__ import annotations

import torch

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "bad allocation")


def is_out_of_memory(error: BaseException) -> bool:
    """True for Python's, CUDA's and the CPU allocator's ways of saying so."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    try:
        text = str(error).lower()
    except Exception:  # an exception's own __str__ may raise
        return False
    return any(sign in text for sign in _SIGNS)


def release_cached_memory() -> None:
    """Give the GPU's cached blocks back, so that the smaller retry has room."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class MemoryCap:
    """The largest cost of a micro-batch that is known to fit, once one did not.

    The cost is padded length units (features when the task has no lengths), so a batch of many short texts
    is not punished for one of many long ones.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._fitted = 0
        self._failed = False

    def begin(self) -> None:
        """A new micro-batch is about to be tried."""
        self._fitted = 0
        self._failed = False

    def fitted(self, cost: int) -> None:
        """A pass of this cost fitted."""
        self._fitted = max(self._fitted, cost)

    def failed(self) -> None:
        """A pass did not fit."""
        self._failed = True

    def settle(self, *, alone: bool) -> bool:
        """End the micro-batch; True when the limit was lowered.

        Args:
            alone: a single feature failed alone. Then it is to blame and not the size of the batch: were
                the limit lowered, one bad request would slow down everybody after it.
        """
        if not self._failed or alone or not self._fitted:
            return False
        self.limit = min(self._fitted, self.limit or self._fitted)
        return True
