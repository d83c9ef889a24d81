"""The cost of a forward pass on this machine, estimated from the passes themselves.

The planner needs one number: the fixed part of a pass (launching kernels, reading the weights) in length units. It
is the intercept divided by the slope of a line fitted to the measured passes, seconds against computed length. Old
passes fade, so the estimate recovers from a bad start or a change of the machine within about twenty batches.
"""

from __future__ import annotations

import math

FADING = 0.97
"""Weight of each pass relative to the next one; about 33 passes count."""
MIN_SPREAD = 0.05
"""Variance over squared mean of the lengths; passes of nearly the same size say nothing about the fixed part."""


class PassCost:
    """The running estimate of ``seconds = a + b * length``; :attr:`fixed` is a/b.

    Args:
        fixed: the initial estimate, in length units.
    """

    MAX_FIXED = 4096.0

    def __init__(self, fixed: float = 16.0) -> None:
        self.fixed = fixed
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, length: int, seconds: float) -> None:
        """Record a pass over ``length`` computed units that took ``seconds``."""
        if length <= 0 or not math.isfinite(seconds) or seconds <= 0:
            return
        self._count = FADING * self._count + 1
        self._x = FADING * self._x + length
        self._y = FADING * self._y + seconds
        self._xx = FADING * self._xx + length * length
        self._xy = FADING * self._xy + length * seconds
        variance = self._count * self._xx - self._x * self._x
        if self._count < 4 or variance < MIN_SPREAD * self._x * self._x:
            return
        slope = (self._count * self._xy - self._x * self._y) / variance
        if slope > 0:
            intercept = (self._y - slope * self._x) / self._count
            self.fixed = min(max(intercept / slope, 1.0), self.MAX_FIXED)
