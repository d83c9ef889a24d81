"""The command ``check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from tsbatch.cli import options
from tsbatch.cli.exit_codes import FAILED, FINDINGS
from tsbatch.system.console import emit_json, telling
from tsbatch.system.signals import end_on_signals


def check_command(
    mar: options.ArchivePath,
    data: Annotated[
        Path | None,
        Option(
            help="Sample requests: a file with one JSON value per line, or a folder with one request per file; "
            "by default the examples of a ready-made task."
        ),
    ] = None,
    max_batch: Annotated[
        int | None, Option(min=1, help="Largest batch to measure; the archive's batchSize if omitted.")
    ] = None,
    one_worker: Annotated[
        bool, Option("--one-worker", help="Skip the second load, which measures the memory of another worker.")
    ] = False,
    limit: Annotated[int, Option(min=1, help="Time limit for loading and measuring, in seconds.")] = 3600,
    json: options.Json = False,
) -> None:
    """Load an archive as a worker would, measure it, and recommend timeouts and the number of workers.

    Exit code 0 if there are no findings, 1 if there are, 3 if the archive does not load; the first line then says why.
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
