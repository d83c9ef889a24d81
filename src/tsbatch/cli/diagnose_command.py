"""The verb diagnose of the panel Measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsbatch.cli.server_commands import Json, Name, ServerUrl, is_address, target
from tsbatch.diagnosis.model_facts import Known
from tsbatch.errors import UsageError
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import DEFAULT_NAME
from tsbatch.system.console import emit_json, progress

if TYPE_CHECKING:
    # It takes NumPy along, which --help has no time for.
    from tsbatch.diagnosis.diagnosis import Diagnosis
    from tsbatch.report.document import Report

PANEL = "Measure"
MEGABYTE = 1_000_000
SECONDS = 10.0


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command(rich_help_panel=PANEL)(diagnose)


def diagnose(
    source: Annotated[
        str | None,
        typer.Argument(
            help="A load test's file, a TorchServe log folder (any handler), or a Prometheus address like "
            "http://127.0.0.1:8082/metrics; the running server's log folder when left out."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="NAME or NAME/VERSION; the busiest model when left out.", metavar="NAME")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="How long to watch a Prometheus address.", metavar="S")
    ] = SECONDS,
    name: Name = DEFAULT_NAME,
    server: ServerUrl = None,
    html: Annotated[Path | None, typer.Option(help="File for a report to read in a browser.", metavar="FILE")] = None,
    json: Json = False,
) -> None:
    """Say in words where the time of the requests goes, and which single change is next."""
    if html:
        from tsbatch.report.html_page import check_place, save

        check_place(html)
    found = _diagnosed(source, model, seconds, name, server)
    if html:
        save(_report(found), html)
    if json:
        emit_json(found.to_json())
        return
    from tsbatch.diagnosis.page import show

    show(found)


def _diagnosed(source: str | None, model: str | None, seconds: float, name: str, server: str | None) -> Diagnosis:
    if source is not None and "://" in source:
        return _of_prometheus(source, model, seconds, name, server)
    path = Path(source) if source is not None else instances.find(name).log_dir
    if _is_result(path):
        from tsbatch.diagnosis.data_sources import from_result

        return from_result(path)
    return _of_log(path, model, name, server, here=source is None)


def _is_result(path: Path) -> bool:
    return path.is_file() and path.suffix == ".json"


def _report(found: Diagnosis) -> Report:
    from tsbatch.bench.padding_waste import WasteLog
    from tsbatch.bench.result_file import BenchResult
    from tsbatch.report.bench_report import report_of_bench
    from tsbatch.report.diagnosis_report import report_of_diagnosis

    path = Path(found.source)
    if _is_result(path):
        return report_of_bench(BenchResult.load(path))
    waste = WasteLog(path, found.known.model).end() if path.is_dir() else None
    return report_of_diagnosis(found, {} if waste is None else {"whole log": waste})


def _of_prometheus(url: str, model: str | None, seconds: float, name: str, server: str | None) -> Diagnosis:
    from tsbatch.diagnosis.prometheus import from_prometheus

    if not is_address(url):
        raise UsageError(f"{url} is no address; expected one like http://127.0.0.1:8082/metrics")
    known = _known(model, name, server) if model is not None and server is not None else None
    with progress(f"watching {url}, {seconds:g} s"):
        return from_prometheus(url, seconds=seconds, model=model, known=known)


def _of_log(path: Path, model: str | None, name: str, server: str | None, *, here: bool) -> Diagnosis:
    from tsbatch.diagnosis.data_sources import choose, of_model_log
    from tsbatch.diagnosis.ts_log import read_log, size_of

    megabytes = size_of(path) / MEGABYTE
    with progress(f"reading {path}, MB", total=round(megabytes, 1)) as step:
        logs = read_log(path, lambda amount: step.advance(round(amount / MEGABYTE, 1)))
    chosen = choose(logs, model)
    known = _known(f"{chosen.name}/{chosen.version}", name, server) if here or server else Known()
    return of_model_log(chosen, known, source=str(path), others=[one for one in logs if one is not chosen])


def _known(model: str, name: str, server: str | None) -> Known:
    from tsbatch.diagnosis.server_facts import known_of
    from tsbatch.serving.management_client import ModelNotFound

    plain, _, version = model.partition("/")
    with target(name, server) as (management, _):
        try:
            return known_of(management, plain, version or None)
        except ModelNotFound:  # unregistered since; the log still tells of it
            return Known()
