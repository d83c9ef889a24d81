"""Long sounds cut into overlapping windows, as transformers' pipeline for speech does (chunk_iter).

The ends of a window lack context, so a stretch of it on either side, its stride, is heard but not taken into the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsbatch.errors import PayloadTooLarge, Unprocessable

WINDOWS = 256
"""Windows of one sound: a client that asks for tiny steps would fill the worker with them."""


@dataclass(frozen=True, slots=True)
class Span:
    """One window, in samples.

    Attributes:
        start, stop: where it lies in the sound.
        left, right: how much of either end is only heard for context.
    """

    start: int
    stop: int
    left: int = 0
    right: int = 0


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a request wants its sound cut, in seconds.

    Attributes:
        window: length of a window; 0 for the whole sound in one.
        strides: left and right stride; None for a sixth of the window each.
        longest: what one window may have.
        align: windows are whole multiples of so many samples, for which the model makes one frame.
        least: a shorter rest is left out, since the model makes nothing of it.
    """

    window: float
    strides: Sequence[float] | None
    longest: float
    align: int = 1
    least: int = 1

    def spans(self, samples: int, rate: int) -> list[Span]:
        """The windows of a sound.

        Args:
            samples: its length.
            rate: samples a second.

        Raises:
            Unprocessable: the windows would be too long or too many, or their strides leave nothing between.
            PayloadTooLarge: the whole sound is too long for one window.
        """
        if not self.window:
            if samples > self.longest * rate:
                message = f"the sound is {samples / rate:,.1f} seconds long, and {self.longest:g} are heard at once"
                raise PayloadTooLarge(message, expected="a shorter sound, or windows (chunk_length_s)")
            return [Span(0, samples)]
        left, right = self.strides or (self.window / 6, self.window / 6)
        length, left, right = (self._aligned(seconds, rate) for seconds in (self.window, left, right))
        step = length - left - right
        if self.window > self.longest or step <= 0:
            message = f"parameters.chunk_length_s: windows of {self.window:g} s with strides of {left / rate:g} and "
            message += f"{right / rate:g} s cannot be"
            raise Unprocessable(message, expected=f"at most {self.longest:g}, and more than its strides together")
        count = 1 + max(0, -(-(samples - length) // step))
        if count > WINDOWS:
            message = f"parameters.chunk_length_s: the sound would become {count:,} windows"
            raise Unprocessable(message, expected=f"at most {WINDOWS}: longer windows or shorter strides")
        spans = [
            Span(place, min(place + length, samples), left if place else 0, right if place + length < samples else 0)
            for place in range(0, count * step, step)
        ]
        return [span for span in spans if span.stop - span.start > max(span.left, self.least - 1)]

    def _aligned(self, seconds: float, rate: int) -> int:
        return round(seconds * rate / self.align) * self.align
