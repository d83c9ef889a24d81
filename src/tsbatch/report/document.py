"""The content of a report; :mod:`tsbatch.report.html_page` renders it.

::

    Report -> Section -> Words | Table | Figure
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from tsbatch.bench.result_tables import Table
from tsbatch.diagnosis.explanation import Words


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart and its data as a table.

    Attributes:
        title: its heading.
        note: an explanation of the chart.
        chart: an ``<svg>``.
        legend: style sheet class and name of each colour.
        columns, rows: the data as a table.
    """

    kind: ClassVar[str] = "figure"
    title: str
    note: str
    chart: Markup
    legend: Sequence[tuple[str, str]] = ()
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


__all__ = ["Figure", "Part", "Report", "Section", "Table", "Words"]

Part = Words | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under a common heading."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report.

    Attributes:
        title: for the browser tab.
        headline: the result in one sentence.
        lead: introductory paragraphs.
        facts: name and value of the most important figures.
        sections: everything else, in reading order.
    """

    title: str
    headline: str
    lead: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
