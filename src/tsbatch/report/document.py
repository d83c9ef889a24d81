"""What a report consists of; what it looks like is the matter of :mod:`tsbatch.report.html_page`.

::

    Report -> Section -> Words | Table | Figure
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from tsbatch.bench.result_tables import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Sentences, and lines to copy.

    Attributes:
        title: a heading above them; empty for none.
        lines: one paragraph each.
        code: lines for a shell or a file.
    """

    kind: ClassVar[str] = "words"
    title: str = ""
    lines: Sequence[str] = ()
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, and the same as a table.

    Attributes:
        title: what it shows.
        note: what to see in it, in words.
        chart: an ``<svg>``.
        legend: for each colour its class in the style sheet and its name.
        columns, rows: what is drawn, as a table.
    """

    kind: ClassVar[str] = "figure"
    title: str
    note: str
    chart: Markup
    legend: Sequence[tuple[str, str]] = ()
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


Part = Words | Table | Figure


@dataclass(frozen=True, slots=True)
class Section:
    """Parts under one heading."""

    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report.

    Attributes:
        title: for the browser's tab.
        headline: the finding, in a sentence.
        lead: what to read next, one paragraph each.
        facts: the few figures that matter, each with its name.
        sections: the rest, in reading order.
    """

    title: str
    headline: str
    lead: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
