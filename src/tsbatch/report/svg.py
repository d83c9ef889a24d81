"""SVG elements, scales and axes for the charts.

A chart is :data:`WIDTH` units wide, about a phone's width in CSS pixels, so its text is never smaller than the page's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

WIDTH: Final = 360.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 12.0, 20.0, 34.0
CHARACTER: Final = 6.6
"""Approximate width of a character; fonts differ."""


def tag(name: str, *children: Markup | str, **attributes: object) -> Markup:
    """Return an element with escaped texts and values; ``class_`` is class and ``text_anchor`` text-anchor."""
    written = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"), f"{round(value, 1):g}" if isinstance(value, float) else value
        )
        for key, value in attributes.items()
    )
    return Markup("<{}{}>{}</{}>").format(name, written, Markup("").join(children), name)


def picture(label: str, height: float, *children: Markup) -> Markup:
    """Return a complete chart with a label for screen readers."""
    return tag("svg", *children, viewBox=f"0 0 {WIDTH:g} {height:g}", role="img", aria_label=label)


def text(words: str, x: float, y: float, anchor: str = "start", class_: str = "tick") -> Markup:
    """Return a line of text; ``anchor`` is start, middle or end."""
    return tag("text", words, x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> Markup:
    """Return a straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def box(x: float, y: float, width: float, height: float, class_: str, tip: str) -> Markup:
    """Return a rectangle with a tooltip."""
    return tag("rect", tag("title", tip), x=x, y=y, width=width, height=height, class_=class_)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to positions: ``low`` to ``start`` and ``high`` to ``end``, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        low, high, here = (math.log(one) if self.log else one for one in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (here - low) / ((high - low) or 1.0)

    def ticks(self, limit: int = 5) -> list[float]:
        """Return about ``limit`` round values within the scale."""
        found = _log_ticks(self.low, self.high, limit) if self.log else []
        if len(found) > 1:
            return found
        step = _step(self.low, self.high, limit)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(step * number, 12) for number in range(first, last + 1)]


def from_zero(highest: float, start: float, end: float, limit: int = 4) -> Scale:
    """Return a scale from 0 to the first round value at or above ``highest``."""
    step = _step(0.0, highest, limit)
    return Scale(0.0, step * math.ceil(highest / step - 1e-9), start, end)


def _step(low: float, high: float, limit: int) -> float:
    least = (high - low) / limit or 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def _log_ticks(low: float, high: float, limit: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) <= limit + 2:
            return inside
    return inside[:: math.ceil(len(inside) / limit)]


def number(value: float) -> str:
    """Return the label of a tick."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def bottom_axis(scale: Scale, ticks: Sequence[float], y: float, title: str) -> Markup:
    """Return tick labels and title below the plot."""
    labels = [text(number(tick), scale(tick), y + 14, "middle") for tick in ticks]
    return Markup("").join(
        [line(scale.start, y, scale.end, y), *labels, text(title, scale.end, y + 28, "end", class_="")]
    )


def left_axis(scale: Scale, title: str) -> Markup:
    """Return horizontal grid lines with labels at the left, and a title above the plot."""
    parts = [text(title, 2.0, 11.0, class_="")]
    for tick in scale.ticks(4):
        parts += [
            line(LEFT, scale(tick), WIDTH - RIGHT, scale(tick)),
            text(number(tick), LEFT - 4, scale(tick) + 4, "end"),
        ]
    return Markup("").join(parts)
