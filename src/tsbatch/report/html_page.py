"""Render a report as a single self-contained HTML file, without scripts, network access, fonts or other files."""

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
    """Return the page's HTML; everything in the report except the charts is escaped."""
    templates = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {"cell": cell, "classes": classes}
    return templates.get_template("page.html").render(report=report, version=__version__)


def cell(value: object) -> str:
    """Return the text of a cell: at most three decimals, a dash for unknown values."""
    if value is None or value != value:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value)


def classes(rows: Sequence[Sequence[object]], count: int) -> list[Markup]:
    """Return the class attribute of each of ``count`` columns; columns of numbers are aligned to the right."""
    return [
        NUMBERS if all(row[index] is None or isinstance(row[index], Real) for row in rows) else Markup("")
        for index in range(count)
    ]


def check_path(path: Path) -> None:
    """Check before the work whether a report can be written to this path.

    Raises:
        UsageError: it cannot.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--html {path}: {'is a folder' if path.is_dir() else 'there is no such folder'}")


def save(report: Report, path: Path) -> None:
    """Write the page atomically.

    Raises:
        OSError: it cannot be written.
    """
    with atomic_file(path) as stream:
        stream.write(render(report).encode())
