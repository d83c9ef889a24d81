"""The command ``run``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import orjson
import typer
from typer import Option

from tsbatch.archive.model_store import ModelSource
from tsbatch.cli import options
from tsbatch.cli.exit_codes import FINDINGS
from tsbatch.errors import UsageError
from tsbatch.system import console

SCHEMA = 1
STANDARD = "-"


def run_command(
    mar: options.ArchivePath,
    data: Annotated[str, Option(help="File with one JSON value per line, as a client would post it; - for stdin.")],
    output: Annotated[str, Option("--output", "-o", help="File for the responses; - for stdout.")] = STANDARD,
    batch_size: Annotated[
        int | None, Option(min=1, help="Requests per batch; the archive's batchSize if omitted.")
    ] = None,
    text: Annotated[bool, Option("--text", help="Treat the lines as plain text, not JSON.")] = False,
    as_json: Annotated[
        bool, Option("--json", help="Print the summary as one JSON object; on stderr if the responses go to stdout.")
    ] = False,
) -> None:
    """Answer a file of requests without a server; each request line yields one line {"index", "status", "body"}."""
    _check_paths(mar, data, output)
    # The handler may print, but stdout is for the responses.
    standard = sys.stdout.buffer
    with redirect_stdout(sys.stderr):
        summary = _run(mar, data, output, standard, batch_size=batch_size, text=text)
    if not as_json:
        _show(summary)
    elif output == STANDARD:
        typer.echo(orjson.dumps(summary).decode(), err=True)
    else:
        console.emit_json(summary)
    if summary["stopped"]:
        raise KeyboardInterrupt
    if summary["failed"]:
        raise typer.Exit(FINDINGS)


def _check_paths(mar: Path, data: str, output: str) -> None:
    if not mar.exists():
        raise UsageError(f"{mar}: no such archive")
    ModelSource.parse(mar)
    if data != STANDARD and not Path(data).is_file():
        raise UsageError(f"{data}: no such file; --data needs a file with one request per line, or - for stdin")
    if output != STANDARD:
        if Path(output).is_dir():
            raise UsageError(f"{output} is a folder; --output needs a file for the responses")
        if not Path(output).absolute().parent.is_dir():
            raise UsageError(f"{output}: no such folder: {Path(output).absolute().parent}")
        if data != STANDARD and Path(output).resolve() == Path(data).resolve():
            raise UsageError(f"{output}: the responses would overwrite the requests; choose another --output")


def _run(
    mar: Path, data: str, output: str, standard: BinaryIO, *, batch_size: int | None, text: bool
) -> dict[str, Any]:
    from tsbatch.emulation.runner import HandlerRunner
    from tsbatch.testing import offline_batches

    tally, stopped = offline_batches.Tally(), False
    with offline_batches.remarks():
        console.say(f"loading {mar.name} ...")
        with HandlerRunner.from_mar(mar, batch_size=batch_size) as runner:
            name = runner.model_name
            content_type = offline_batches.TEXT_LINE if text else offline_batches.JSON_LINE
            try:
                with _source(data) as source, _sink(output, standard) as sink, _progress(data, sink) as step:
                    offline_batches.run_lines(runner, source, sink, tally, content_type=content_type, step=step)
            except KeyboardInterrupt:
                stopped = True
    failed = {str(status): number for status, number in tally.failed.items()}
    return {
        "schema": SCHEMA,
        "model": name,
        "requests": tally.requests,
        "ok": tally.requests - sum(failed.values()),
        "failed": failed,
        "batches": tally.batches,
        "seconds": round(tally.seconds, 3),
        "requests_per_second": round(tally.rate, 2),
        "worker_died": tally.reasons,
        "stopped": stopped,
        "output": output,
    }


def _source(data: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if data == STANDARD else Path(data).open("rb")


def _sink(output: str, standard: BinaryIO) -> AbstractContextManager[BinaryIO]:
    return nullcontext(standard) if output == STANDARD else Path(output).open("wb")


@contextmanager
def _progress(data: str, sink: BinaryIO) -> Iterator[console.Step]:
    if sink.isatty():
        # The responses show the progress; a bar would be drawn into them.
        yield console.Step(lambda *_: None, "running")
        return
    total = None if data == STANDARD else Path(data).stat().st_size
    with console.progress("running (bytes of input)", total) as step:
        yield step


def _show(summary: dict[str, Any]) -> None:
    failed = ", ".join(f"{number} x {status}" for status, number in summary["failed"].items())
    console.say(
        f"{'stopped: ' if summary['stopped'] else ''}{summary['requests']} requests in {summary['batches']} batches, "
        f"{summary['ok']} ok, {f'failed: {failed}' if failed else '0 failed'}; "
        f"{summary['seconds']:.1f} s, {summary['requests_per_second']:.1f} requests/s"
    )
