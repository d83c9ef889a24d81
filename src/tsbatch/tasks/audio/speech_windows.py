"""Divide long sounds into overlapping windows, as transformers' pipeline for speech does (chunk_iter).

The ends of a window lack context. So a part on either side, its stride, is processed but does not go into the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tsbatch.errors import PayloadTooLarge, Unprocessable

MAX_WINDOWS = 256
"""Windows of one sound, so that a client that asks for tiny steps does not overload the worker."""


@dataclass(frozen=True, slots=True)
class Span:
    """One window, in samples.

    Attributes:
        start, stop: its position in the sound.
        left, right: how much of each end only serves as context.
    """

    start: int
    stop: int
    left: int = 0
    right: int = 0


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a sound is divided into windows, in seconds.

    Attributes:
        window: length of a window; 0 for the whole sound in one.
        strides: left and right stride; None for a sixth of the window each.
        longest: the longest window.
        align: samples of one frame of the model; windows are whole multiples of it.
        shortest: samples; a shorter rest is left out, since the model has no frame for it.
    """

    window: float
    strides: Sequence[float] | None
    longest: float
    align: int = 1
    shortest: int = 1

    def spans(self, samples: int, rate: int) -> list[Span]:
        """The windows of a sound.

        Args:
            samples: the length of the sound.
            rate: samples a second.

        Raises:
            Unprocessable: the windows would be too long or too many, or their strides leave nothing between.
            PayloadTooLarge: the whole sound is too long for one window.
        """
        if not self.window:
            if samples > self.longest * rate:
                message = (
                    f"the sound is {samples / rate:,.1f} seconds long, over the longest window of {self.longest:g}"
                )
                raise PayloadTooLarge(message, expected="a shorter sound, or windows (chunk_length_s)")
            return [Span(0, samples)]
        left, right = self.strides or (self.window / 6, self.window / 6)
        length, left, right = (
            round(seconds * rate / self.align) * self.align for seconds in (self.window, left, right)
        )
        step = length - left - right
        if self.window > self.longest or step <= 0:
            strides = f"strides of {left / rate:g} and {right / rate:g} s"
            message = f"parameters.chunk_length_s: windows of {self.window:g} s with {strides} are not possible"
            raise Unprocessable(message, expected=f"at most {self.longest:g}, and more than its strides together")
        count = 1 + max(0, -(-(samples - length) // step))
        if count > MAX_WINDOWS:
            message = f"parameters.chunk_length_s: the sound would become {count:,} windows"
            raise Unprocessable(message, expected=f"at most {MAX_WINDOWS}: longer windows or shorter strides")
        spans = [
            Span(start, min(start + length, samples), left if start else 0, right if start + length < samples else 0)
            for start in range(0, count * step, step)
        ]
        return [span for span in spans if span.stop - span.start > max(span.left, self.shortest - 1)]
