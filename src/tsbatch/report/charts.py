"""Charts of stacked bars, histograms, lines and points: SVG text with classes instead of colours.

The colours ``c0`` to ``c5`` are in style.css, for light, dark and paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from tsbatch.bench.request_table import Column
from tsbatch.report.document import Figure
from tsbatch.report.svg import (
    BOTTOM,
    CHARACTER,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    bottom_axis,
    box,
    from_zero,
    left_axis,
    line,
    number,
    picture,
    tag,
    text,
)

BAR, GAP = 20.0, 8.0
HEIGHT = 210.0


def stacked_bars(label: str, names: Sequence[str], bars: Sequence[tuple[str, Sequence[float]]], unit: str) -> Markup:
    """Horizontal bars of several parts each.

    Args:
        label: text for screen readers.
        names: names of the parts, in the order of the colours.
        bars: name and parts of each bar.
        unit: unit of the values.
    """
    longest = max(sum(parts) for _, parts in bars) or 1.0
    left = 14 + CHARACTER * max(len(name) for name, _ in bars)
    scale = Scale(0.0, longest, left, WIDTH - 56)
    bottom = 4 + len(bars) * (BAR + GAP)
    parts = [line(scale(tick), 0.0, scale(tick), bottom) for tick in scale.ticks()]
    for row, (name, values) in enumerate(bars):
        y = 4 + row * (BAR + GAP)
        parts.append(text(name, left - 6, y + 14, "end", class_=""))
        ends = np.cumsum([0.0, *values])
        for index, value in enumerate(values):
            if value > 0:
                begin, end = scale(float(ends[index])), scale(float(ends[index + 1]))
                tip = f"{name}: {names[index]} {number(round(value, 2))} {unit}"
                parts.append(box(begin, y, max(end - begin, 0.5), BAR, f"c{index}", tip))
        parts.append(text(number(round(float(ends[-1]), 1)), scale(float(ends[-1])) + 4, y + 14, class_=""))
    return picture(label, bottom + BOTTOM, *parts, bottom_axis(scale, scale.ticks(), bottom, unit))


def stacked_figure(
    title: str, note: str, names: Sequence[str], bars: Sequence[tuple[str, Sequence[float]]], unit: str = "ms"
) -> Figure:
    """Stacked bars with their table."""
    return Figure(
        title=title,
        note=note,
        chart=stacked_bars(f"{title}. {note}", names, bars, unit),
        legend=legend(names),
        columns=[unit, *names, "sum"],
        rows=[[name, *values, sum(values)] for name, values in bars],
    )


def legend(names: Sequence[str]) -> list[tuple[str, str]]:
    """Colour class and name of each series; empty for a single one."""
    return [(f"c{index}", name) for index, name in enumerate(names)] if len(names) > 1 else []


def histogram(
    label: str,
    edges: Sequence[float],
    counts: Sequence[float],
    *,
    unit: str,
    counted: str,
    marks: Mapping[str, float] | None = None,
    log: bool = False,
) -> Markup:
    """Columns between edges.

    Args:
        label: text for screen readers.
        edges: one more than counts, rising.
        counts: heights of the columns.
        unit: unit of the edges.
        counted: unit of the heights.
        marks: marked values, by name.
        log: whether the axis below is logarithmic.
    """
    bottom = HEIGHT - BOTTOM
    across = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT, log)
    up = from_zero(max(counts) or 1.0, bottom, TOP + 14)
    ticks = [tick for tick in across.ticks() if log or tick == round(tick)]
    columns = [
        box(across(low), up(count), across(high) - across(low), bottom - up(count), "c0", _tip(low, high, count, unit))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count > 0
    ]
    pointed = _marks(across, marks or {}, bottom)
    return picture(label, HEIGHT, left_axis(up, counted), *columns, *pointed, bottom_axis(across, ticks, bottom, unit))


def _tip(low: float, high: float, count: float, unit: str) -> str:
    return f"{low:.4g} to {high:.4g} {unit}: {number(round(count, 1))}"


def _marks(across: Scale, marks: Mapping[str, float], bottom: float) -> list[Markup]:
    parts, taken = [], -1.0
    for name, value in sorted(marks.items(), key=lambda mark: mark[1]):
        x = min(max(across(value), across.start), across.end)
        parts.append(line(x, TOP + 8, x, bottom, class_="mark"))
        half = CHARACTER * len(name) / 2
        if x - half > taken:  # an overlapping name is only in the note
            at_end = x + half > WIDTH - 2
            parts.append(text(name, WIDTH - 2 if at_end else x, TOP + 4, "end" if at_end else "middle", class_=""))
            taken = x + half
    return parts


def lines(
    label: str, at: Column, series: Mapping[str, Column], *, across: str, up: str, marks: Sequence[float] = ()
) -> Markup:
    """Lines from left to right, with a gap where a value is NaN.

    Args:
        label: text for screen readers.
        at: positions of the values, shape (n,), rising.
        series: name to values, shape (n,), in the order of the colours.
        across: title of the axis below.
        up: title of the axis at the left.
        marks: positions of vertical lines.
    """
    bottom = HEIGHT - BOTTOM
    known = np.concatenate([values[~np.isnan(values)] for values in series.values()])
    scale = from_zero(float(known.max()) if len(known) and known.max() > 0 else 1.0, bottom, TOP)
    to_x = Scale(float(at[0]), float(at[-1]), LEFT, WIDTH - RIGHT)
    parts = [
        left_axis(scale, up),
        *(line(to_x(mark), TOP, to_x(mark), bottom, class_="mark") for mark in marks),
    ]
    for color, values in enumerate(series.values()):
        parts += [_segment(points, f"c{color}") for points in _segments(at, values, to_x, scale)]
    return picture(label, HEIGHT, *parts, bottom_axis(to_x, to_x.ticks(), bottom, across))


def line_figure(
    title: str,
    note: str,
    unit: str,
    at: Column,
    series: Mapping[str, Column],
    *,
    across: str,
    column: tuple[str, Column] | None = None,
    marks: Sequence[float] = (),
) -> Figure:
    """Lines with their table.

    ``column`` is heading and values of the table's first column, by default ``across`` and ``at``; see :func:`lines`.
    """
    heading, values = column or (across, at)
    return Figure(
        title=title,
        note=note,
        chart=lines(f"{title}. {note}", at, series, across=across, up=unit, marks=marks),
        legend=legend([*series]),
        columns=[heading, *(name if name == unit else f"{name}, {unit}" for name in series)],
        rows=list(zip(values.tolist(), *(one.tolist() for one in series.values()), strict=True)),
    )


def _segments(at: Column, values: Column, to_x: Scale, scale: Scale) -> list[list[tuple[float, float]]]:
    segments: list[list[tuple[float, float]]] = [[]]
    for here, value in zip(at, values, strict=True):
        if not np.isnan(value):
            segments[-1].append((to_x(float(here)), scale(float(value))))
        else:
            segments.append([])
    return [points for points in segments if points]


def _segment(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    if len(points) == 1:
        return tag("circle", cx=points[0][0], cy=points[0][1], r=2.5, class_=class_)
    return tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)


def points(
    label: str,
    groups: Mapping[str, Sequence[tuple[float, float, str]]],
    *,
    across: str,
    up: str,
    joined: str = "",
    mark: float | None = None,
) -> Markup:
    """A scatter plot.

    Args:
        label: text for screen readers.
        groups: name to points, each with x, y and description, in the order of the colours.
        across: title of the axis below.
        up: title of the axis at the left.
        joined: a group whose points are joined from left to right.
        mark: position of a vertical line.
    """
    bottom = HEIGHT - BOTTOM
    every = [point for group in groups.values() for point in group]
    furthest = max([x for x, _, _ in every] + ([] if mark is None else [mark])) or 1.0
    to_x = from_zero(furthest, LEFT, WIDTH - RIGHT)
    scale = from_zero(max(y for _, y, _ in every) or 1.0, bottom, TOP)
    parts = [
        left_axis(scale, up),
        *([] if mark is None else [line(to_x(mark), TOP, to_x(mark), bottom, class_="mark")]),
    ]
    for color, (name, group) in enumerate(groups.items()):
        if name == joined:
            parts.append(_segment([(to_x(x), scale(y)) for x, y, _ in sorted(group)], f"c{color}"))
        parts += [
            tag("circle", tag("title", tip), cx=to_x(x), cy=scale(y), r=3.5, class_=f"c{color}") for x, y, tip in group
        ]
    return picture(label, HEIGHT, *parts, bottom_axis(to_x, to_x.ticks(), bottom, across))
