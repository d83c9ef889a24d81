"""The command ``top``."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from rich.live import Live
from typer import Option

from tsbatch.cli import options
from tsbatch.cli.server_commands import connect, is_address
from tsbatch.errors import UsageError
from tsbatch.serving.instance import DEFAULT_NAME
from tsbatch.system.console import emit_json, grid, out, say, table

if TYPE_CHECKING:
    # It imports NumPy, which would slow --help down.
    from tsbatch.diagnosis.live_status import Row, Top

SCHEMA = 1
MEBIBYTE = 2**20
COLUMNS = (
    "model", "version", "requests/s", "failed %", "batch", "in queue",
    "queue ms", "assembly ms", "handler ms", "latency ms", "P99 ms", "workers", "memory MiB",
)  # fmt: skip


def top_command(
    model: options.OnlyModel = None,
    once: Annotated[bool, Option("--once", help="Print one table after one interval, and exit.")] = False,
    seconds: Annotated[float, Option(min=0.2, help="Length of an interval, in seconds.", metavar="S")] = 2.0,
    metrics: Annotated[
        str | None, Option(help="Prometheus address, for a server whose logs are not on this machine.", metavar="URL")
    ] = None,
    name: options.Name = DEFAULT_NAME,
    server: options.ServerUrl = None,
    json: Annotated[bool, Option("--json", help="Print one JSON object per interval.")] = False,
) -> None:
    """Show live figures for each model: requests, batches, queue, latency by phase, workers and memory."""
    if metrics is not None and not is_address(metrics):
        raise UsageError(f"--metrics is {metrics}; expected an address like http://127.0.0.1:8082/metrics")
    with _top(name, server, metrics) as source:
        samples = _samples(source, model, seconds, once=once)
        if json:
            for rows in samples:
                emit_json({"schema": SCHEMA, "seconds": seconds, "models": rows})
        elif once or not out.is_terminal:
            for rows in samples:
                table(COLUMNS, [cells(row) for row in rows])
        else:
            _live(samples)


@contextlib.contextmanager
def _top(name: str, server: str | None, metrics: str | None) -> Iterator[Top]:
    from tsbatch.diagnosis.live_status import LogTail, Top
    from tsbatch.diagnosis.prometheus import scrape

    with connect(name, server) as (management, instance):
        if metrics is not None:
            yield Top(management, scrape=lambda: scrape(metrics))
        elif instance is not None:
            # The log has every request, whatever metrics_mode is.
            yield Top(management, log=LogTail(instance.log_dir))
        else:
            say("tsbatch did not start this server; without --metrics only its workers and queues can be shown")
            yield Top(management)


def _samples(source: Top, model: str | None, seconds: float, *, once: bool) -> Iterator[list[Row]]:
    for _ in range(1) if once else itertools.count():
        time.sleep(seconds)
        yield source.look(model)


def _live(samples: Iterator[list[Row]]) -> None:
    with contextlib.suppress(KeyboardInterrupt), Live(console=out, screen=False, auto_refresh=False) as live:
        for rows in samples:
            live.update(grid(COLUMNS, [cells(row) for row in rows]), refresh=True)


def cells(row: Row) -> list[Any]:
    """Format a row for the table."""
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
