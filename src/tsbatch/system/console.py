"""Terminal output of the commands: results on stdout, everything else on stderr.

A terminal gets colours and progress bars, a pipe or log file gets plain lines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(stderr=True, highlight=False)
"""Progress and notes for people, on stderr."""

out = Console(highlight=False)
"""Results for people, on stdout; programs get :func:`emit_json`."""

WIDE = 10_000
"""Width of a table that is not on a terminal, so that nothing is cut off or wrapped."""

SECONDS_BETWEEN_LINES = 5.0
"""Interval of progress lines outside a terminal."""

PATIENCE = 20.0
"""Seconds until :func:`telling` prints its first line outside a terminal, so a quick failure prints only its reason."""


def say(message: str) -> None:
    """Print a note on stderr."""
    console.print(message, markup=False, soft_wrap=True)


def emit_json(value: Mapping[str, Any]) -> None:
    """Print ``value`` as one line of JSON on stdout; callers add ``"schema": 1`` themselves.

    Paths become strings; NumPy numbers and arrays are allowed.

    Raises:
        TypeError: a value has no JSON form.
    """
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    sys.stdout.write(orjson.dumps(value, default=_plain, option=options).decode())
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Print a table on stdout."""
    target = out if out.is_terminal else Console(highlight=False, width=WIDE)
    target.print(grid(columns, rows, title=title), markup=False)


def grid(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> Table:
    """Make a table in which columns of numbers are aligned to the right.

    Args:
        columns: the headings.
        rows: the cells of each row; None is printed as a dash.
        title: a line above the table.
    """
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(_is_number(row[index]) for row in rows)
        made.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        made.add_row(*("-" if cell is None else str(cell) for cell in row))
    return made


class Step:
    """Progress of a long job; made by :func:`progress`.

    Args:
        show: called with the work done so far and the current description.
        description: what is being done.
    """

    def __init__(self, show: Callable[[float, str], None], description: str) -> None:
        self._show = show
        self.description = description
        self.done = 0.0

    def advance(self, amount: float = 1) -> None:
        """Add to the work done."""
        self.done += amount
        self._show(self.done, self.description)

    def describe(self, description: str) -> None:
        """Change the description."""
        self.description = description
        self._show(self.done, description)


@contextmanager
def progress(description: str, total: float | None = None, *, after: float = 0.0) -> Iterator[Step]:
    """Show the progress of a long job: a bar on a terminal, otherwise a line every few seconds.

    Args:
        description: what is being done, as "packing m.mar".
        total: the amount of work; None if unknown.
        after: seconds before the first line outside a terminal.
    """
    with (
        _bar(description, total)
        if console.is_terminal and not console.is_dumb_terminal
        else _lines(description, total, after) as step
    ):
        yield step


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Show progress by messages, from the first one on; outside a terminal only after :data:`PATIENCE`."""
    with ExitStack() as stack:
        steps: list[Step] = []

        def tell(message: str) -> None:
            if not steps:
                steps.append(stack.enter_context(progress(message, after=PATIENCE)))
            else:
                steps[0].describe(message)

        yield tell


@contextmanager
def _bar(description: str, total: float | None) -> Iterator[Step]:
    amount = (MofNCompleteColumn(),) if total is not None else ()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), *amount, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield Step(lambda done, text: bar.update(task, completed=done, description=text), description)


@contextmanager
def _lines(description: str, total: float | None, after: float) -> Iterator[Step]:
    started = last = time.monotonic()
    shown: str | None = None
    of = "" if total is None else f" of {total:g}"

    def show(done: float, text: str) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if now - started < after or (text == shown and now - last < SECONDS_BETWEEN_LINES):
            return
        last, shown = now, text
        say(f"{text}: {done:g}{of}, {now - started:.0f} s" if done else f"{text} ...")

    show(0, description)
    step = Step(show, description)
    yield step
    if shown is not None:
        say(f"{step.description}: done in {time.monotonic() - started:.1f} s")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _is_number(value: object) -> bool:
    if value is None:
        return True
    try:
        float(str(value))
    except ValueError:
        return False
    return True
