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


def stacked_bars(
    label: str, names: Sequence[str], bars: Sequence[tuple[str, Sequence[float]]], unit: str, most: float | None = None
) -> Markup:
    """Horizontal bars of several parts each.

    Args:
        label: what a screen reader says.
        names: the parts, in their order; the colours follow it.
        bars: name and parts of each bar, in ``unit``.
        unit: of the values.
        most: where the axis ends; at the longest bar when left out.
    """
    longest = most or max(sum(parts) for _, parts in bars) or 1.0
    left = 14 + CHARACTER * max(len(name) for name, _ in bars)
    scale = Scale(0.0, longest, left, WIDTH - 56)
    bottom = 4 + len(bars) * (BAR + GAP)
    parts = [line(scale(tick), 0.0, scale(tick), bottom) for tick in scale.ticks()]
    for row, (name, values) in enumerate(bars):
        y = 4 + row * (BAR + GAP)
        parts.append(text(name, left - 6, y + 14, "end", class_=""))
        ends = np.cumsum([0.0, *values])
        for place, value in enumerate(values):
            if value > 0:
                begin, end = scale(float(ends[place])), scale(float(ends[place + 1]))
                tip = f"{name}: {names[place]} {number(round(value, 2))} {unit}"
                parts.append(box(begin, y, max(end - begin, 0.5), BAR, f"c{place}", tip))
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
        label: what a screen reader says.
        edges: one more than counts, rising.
        counts: the columns' heights.
        unit: of the edges.
        counted: of the heights.
        marks: values to point out, by their names.
        log: whether the edges go on a logarithmic axis.
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
        if x - half > taken:  # a name that would lie on another one is in the note only
            at_end = x + half > WIDTH - 2
            parts.append(text(name, WIDTH - 2 if at_end else x, TOP + 4, "end" if at_end else "middle", class_=""))
            taken = x + half
    return parts


def lines(
    label: str, at: Column, series: Mapping[str, Column], *, across: str, up: str, marks: Sequence[float] = ()
) -> Markup:
    """Lines from left to right, with a gap where a value is NaN.

    Args:
        label: what a screen reader says.
        at: where the values are, shape (n,), rising.
        series: name to values, shape (n,); the colours follow their order.
        across: what the axis below counts.
        up: what the axis at the left counts.
        marks: places to part with a line.
    """
    bottom = HEIGHT - BOTTOM
    known = np.concatenate([values[~np.isnan(values)] for values in series.values()])
    scale = from_zero(float(known.max()) if len(known) and known.max() > 0 else 1.0, bottom, TOP)
    place = Scale(float(at[0]), float(at[-1]), LEFT, WIDTH - RIGHT)
    parts = [left_axis(scale, up), *(line(place(mark), TOP, place(mark), bottom, class_="mark") for mark in marks)]
    for color, values in enumerate(series.values()):
        parts += [_stretch(points, f"c{color}") for points in _stretches(at, values, place, scale)]
    return picture(label, HEIGHT, *parts, bottom_axis(place, place.ticks(), bottom, across))


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


def _stretches(at: Column, values: Column, place: Scale, scale: Scale) -> list[list[tuple[float, float]]]:
    stretches: list[list[tuple[float, float]]] = [[]]
    for here, value in zip(at, values, strict=True):
        if not np.isnan(value):
            stretches[-1].append((place(float(here)), scale(float(value))))
        else:
            stretches.append([])
    return [points for points in stretches if points]


def _stretch(points: Sequence[tuple[float, float]], class_: str) -> Markup:
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
    """Points by two figures.

    Args:
        label: what a screen reader says.
        groups: name to points, each its place across, its place up, and what it is; the colours follow their order.
        across: what the axis below counts.
        up: what the axis at the left counts.
        joined: a group whose points are joined from left to right.
        mark: a value of the axis below to part with a line.
    """
    bottom = HEIGHT - BOTTOM
    every = [point for group in groups.values() for point in group]
    furthest = max([x for x, _, _ in every] + ([] if mark is None else [mark])) or 1.0
    place = from_zero(furthest, LEFT, WIDTH - RIGHT)
    scale = from_zero(max(y for _, y, _ in every) or 1.0, bottom, TOP)
    parts = [
        left_axis(scale, up),
        *([] if mark is None else [line(place(mark), TOP, place(mark), bottom, class_="mark")]),
    ]
    for color, (name, group) in enumerate(groups.items()):
        if name == joined:
            parts.append(_stretch([(place(x), scale(y)) for x, y, _ in sorted(group)], f"c{color}"))
        parts += [
            tag("circle", tag("title", tip), cx=place(x), cy=scale(y), r=3.5, class_=f"c{color}") for x, y, tip in group
        ]
    return picture(label, HEIGHT, *parts, bottom_axis(place, place.ticks(), bottom, across))
