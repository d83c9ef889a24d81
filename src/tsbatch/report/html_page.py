"""A report as one HTML file that needs nothing else: no script, no network, no font, no picture beside it."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tsbatch._version import __version__
from tsbatch.errors import UsageError
from tsbatch.report.document import Report
from tsbatch.system.atomic_write import atomic_file

HERE: Final = Path(__file__).parent
NUMBERS: Final = Markup(' class="number"')


def render(report: Report) -> str:
    """The page's HTML; whatever is in the report is text to it, but for the charts."""
    templates = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {"cell": cell, "classes": classes}
    return templates.get_template("page.html").render(report=report, version=__version__)


def cell(value: object) -> str:
    """What a table shows for a value: three decimals at most, a dash for nothing."""
    if value is None or value != value:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def classes(rows: Sequence[Sequence[object]], count: int) -> list[Markup]:
    """For each of ``count`` columns the attribute of its cells: numbers stand below each other at the right."""
    return [
        NUMBERS if all(row[place] is None or isinstance(row[place], Real) for row in rows) else Markup("")
        for place in range(count)
    ]


def check_place(path: Path) -> None:
    """Find out before the work whether a report can go there.

    Raises:
        UsageError: it cannot.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--html {path}: {'is a folder' if path.is_dir() else 'there is no such folder'}")


def save(report: Report, path: Path) -> None:
    """Write the page, all or nothing.

    Raises:
        OSError: it cannot be written there.
    """
    with atomic_file(path) as stream:
        stream.write(render(report).encode())
