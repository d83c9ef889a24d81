"""Reduce the micro-batch size when a forward pass does not fit into memory, and remember what fits."""

from __future__ import annotations

import torch

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "bad allocation")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, CUDA or the CPU allocator means that memory ran out."""
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
    """Release the cached blocks of the GPU, so that the smaller retry has room."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class MemoryCap:
    """The largest cost of a micro-batch that is known to fit, after one did not fit.

    The cost is measured in padded length units (features if the task has no lengths), so that a batch of many short
    texts is not limited because of a batch of many long ones.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._fitted = 0
        self._failed = False

    def begin(self) -> None:
        """Start a new micro-batch."""
        self._fitted = 0
        self._failed = False

    def fitted(self, cost: int) -> None:
        """Record that a pass of this cost fitted."""
        self._fitted = max(self._fitted, cost)

    def failed(self) -> None:
        """Record that a pass did not fit."""
        self._failed = True

    def settle(self, *, alone: bool) -> bool:
        """End the micro-batch; return True if the limit was lowered.

        Args:
            alone: a single feature failed on its own. Then that feature is the cause, not the batch size: lowering the
                limit would let one bad request slow down all later ones.
        """
        if not self._failed or alone or not self._fitted:
            return False
        self.limit = min(self._fitted, self.limit or self._fitted)
        return True
