"""The verb top of the panel Server."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from tsbatch.cli.server_commands import Name, ServerUrl, is_address, target
from tsbatch.errors import UsageError
from tsbatch.serving.instance import DEFAULT_NAME
from tsbatch.system.console import emit_json, out, say, table

if TYPE_CHECKING:
    # It takes NumPy along, which --help has no time for.
    from tsbatch.diagnosis.live_status import Row, Top

PANEL = "Server"
SCHEMA = 1
SECONDS = 2.0
MEBIBYTE = 2**20
COLUMNS = (
    "model", "version", "requests/s", "failed %", "batch", "in queue",
    "queue ms", "assembly ms", "handler ms", "latency ms", "P99 ms", "workers", "memory MiB",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(rich_help_panel=PANEL)(top)


def top(
    model: Annotated[str | None, typer.Argument(help="Only this model.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Watch one interval, print one table, end.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.2, help="Length of an interval.", metavar="S")] = SECONDS,
    metrics: Annotated[
        str | None,
        typer.Option(help="Prometheus address, for a server whose log folder is not here.", metavar="URL"),
    ] = None,
    name: Name = DEFAULT_NAME,
    server: ServerUrl = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object an interval.")] = False,
) -> None:
    """Show live what each model does: requests, batches, queue, where the time goes, workers and memory."""
    if metrics is not None and not is_address(metrics):
        raise UsageError(f"--metrics is {metrics}; expected an address like http://127.0.0.1:8082/metrics")
    with _top(name, server, metrics) as looking:
        looks = _looks(looking, model, seconds, once=once)
        if json:
            for rows in looks:
                emit_json({"schema": SCHEMA, "seconds": seconds, "models": [row.to_json() for row in rows]})
        elif once or not out.is_terminal:
            for rows in looks:
                table(COLUMNS, [cells(row) for row in rows])
        else:
            _live(looks)


@contextlib.contextmanager
def _top(name: str, server: str | None, metrics: str | None) -> Iterator[Top]:
    from tsbatch.diagnosis.live_status import LogTail, Top
    from tsbatch.diagnosis.prometheus import scrape

    with target(name, server) as (management, instance):
        if metrics is not None:
            yield Top(management, scrape=lambda: scrape(metrics))
        elif instance is not None:
            # It tells of each request, whatever metrics_mode says.
            yield Top(management, log=LogTail(instance.log_dir))
        else:
            say("without --metrics only workers and queues of a server that others started can be seen")
            yield Top(management)


def _looks(looking: Top, model: str | None, seconds: float, *, once: bool) -> Iterator[list[Row]]:
    for number in itertools.count():
        if once and number:
            return
        time.sleep(seconds)
        yield looking.look(model)


def _live(looks: Iterator[list[Row]]) -> None:
    with contextlib.suppress(KeyboardInterrupt), Live(console=out, screen=False, auto_refresh=False) as live:
        for rows in looks:
            live.update(_grid(rows), refresh=True)


def _grid(rows: Sequence[Row]) -> Table:
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(COLUMNS):
        grid.add_column(column, justify="left" if number < 2 else "right")
    for row in rows:
        grid.add_row(*("-" if cell is None else str(cell) for cell in cells(row)))
    return grid


def cells(row: Row) -> list[Any]:
    """A row as people read it."""
    times = (row.queue, row.assembly, row.handler, row.latency, row.p99)
    return [
        row.model,
        row.version,
        _number(row.rate, 1),
        None if row.failed is None else f"{100 * row.failed:.0f}",
        None if row.batch is None else f"{row.batch:.1f}/{row.batch_size}",
        None if row.waiting is None else f"{row.waiting}/{row.places}",
        *(_number(value, 1) for value in times),
        f"{row.ready}/{row.wanted} READY",
        None if row.memory is None else f"{row.memory / MEBIBYTE:.0f}",
    ]


def _number(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"
