"""The verb ``check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tsbatch.system.console import emit_json, telling
from tsbatch.system.signals import end_on_signals

PANEL = "Develop"
FINDINGS, FAILED = 1, 3


def register(app: typer.Typer) -> None:
    """Adds the verb to the command line."""
    app.command("check", rich_help_panel=PANEL)(check_command)


def check_command(
    mar: Annotated[Path, typer.Argument(help="The archive, or a folder that holds what an archive would.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Samples: a file with one JSON value a line, or a folder with one request a file; "
            "a ready-made task's own examples when left out."
        ),
    ] = None,
    max_batch: Annotated[
        int | None, typer.Option(min=1, help="The largest batch to time; the archive's batchSize when left out.")
    ] = None,
    one_worker: Annotated[
        bool, typer.Option("--one-worker", help="Do not load a second time to see what another worker costs.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="Seconds that loading and measuring may take.")] = 3600,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Load an archive as a worker does; time it, ask it, and say what time-outs and how many workers it needs.

    Exit codes: 0 fine, 1 findings, 3 it does not load; the first line then says why.
    """
    from tsbatch.check import page, samples
    from tsbatch.check.run import check

    found = samples.read(data) if data is not None else None
    with end_on_signals(), telling() as tell:
        report = check(
            mar, samples=found, max_batch=max_batch, second_worker=not one_worker, seconds=limit, on_progress=tell
        )
    if json:
        emit_json(report.as_json())
    else:
        page.show(report)
    if report.failure is not None:
        raise typer.Exit(FAILED)
    if report.findings:
        raise typer.Exit(FINDINGS)
