"""What a forward pass costs on this machine, learnt from the passes themselves.

The planner needs one number: the fixed part of a pass (launching kernels, reading the weights) in length units. It
is the intercept over the slope of a straight line through the measured passes, seconds against computed length.
Old passes fade, so that a wrong start or a machine that changes is forgotten after some twenty batches.
"""

from __future__ import annotations

import math

FADING = 0.97
"""Weight of each older pass against the next; about 33 passes count."""
LEAST_SPREAD = 0.05
"""Passes that are all of nearly one size say nothing of the fixed part: variance over squared mean."""


class PassCost:
    """The running estimate of ``seconds = a + b * length``; :attr:`fixed` is a/b.

    Args:
        fixed: what to believe before anything was measured, in length units.
    """

    MOST = 4096.0

    def __init__(self, fixed: float = 16.0) -> None:
        self.fixed = fixed
        self._count = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, length: int, seconds: float) -> None:
        """A pass over ``length`` computed units took so long."""
        if length <= 0 or not math.isfinite(seconds) or seconds <= 0:
            return
        self._count = FADING * self._count + 1
        self._x = FADING * self._x + length
        self._y = FADING * self._y + seconds
        self._xx = FADING * self._xx + length * length
        self._xy = FADING * self._xy + length * seconds
        variance = self._count * self._xx - self._x * self._x
        if self._count < 4 or variance < LEAST_SPREAD * self._x * self._x:
            return
        slope = (self._count * self._xy - self._x * self._y) / variance
        if slope > 0:
            intercept = (self._y - slope * self._x) / self._count
            self.fixed = min(max(intercept / slope, 1.0), self.MOST)
