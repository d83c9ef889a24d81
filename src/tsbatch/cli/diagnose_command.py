"""The command ``diagnose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from tsbatch.cli import options
from tsbatch.cli.server_commands import connect, is_address
from tsbatch.diagnosis.model_facts import Known
from tsbatch.errors import UsageError
from tsbatch.serving import instance as instances
from tsbatch.serving.instance import DEFAULT_NAME
from tsbatch.system.console import emit_json, progress

if TYPE_CHECKING:
    # It imports NumPy, which would slow --help down.
    from tsbatch.diagnosis.diagnosis import Diagnosis
    from tsbatch.report.document import Report

MEGABYTE = 1_000_000


def diagnose_command(
    source: Annotated[
        str | None,
        Argument(
            help="Result file of a load test, TorchServe log folder (any handler), or Prometheus address such as "
            "http://127.0.0.1:8082/metrics; the running server's log folder if omitted."
        ),
    ] = None,
    model: Annotated[
        str | None, Option(help="Model, as NAME or NAME/VERSION; the busiest one if omitted.", metavar="NAME")
    ] = None,
    seconds: Annotated[
        float, Option(min=0.1, help="How long to watch a Prometheus address, in seconds.", metavar="S")
    ] = 10.0,
    name: options.Name = DEFAULT_NAME,
    server: options.ServerUrl = None,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Explain where requests spend their time, and recommend the one setting to change next."""
    found = _diagnose(source, model, seconds, name, server)
    if html:
        from tsbatch.report.html_page import save

        save(_report(found), html)
    if json:
        emit_json(found.to_json())
        return
    from tsbatch.diagnosis.page import show

    show(found)


def _diagnose(source: str | None, model: str | None, seconds: float, name: str, server: str | None) -> Diagnosis:
    if source is not None and "://" in source:
        return _from_prometheus(source, model, seconds, name, server)
    path = Path(source) if source is not None else instances.find(name).log_dir
    if _is_result(path):
        from tsbatch.diagnosis.data_sources import from_result

        return from_result(path)
    return _from_log(path, model, name, server, own_server=source is None)


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


def _from_prometheus(url: str, model: str | None, seconds: float, name: str, server: str | None) -> Diagnosis:
    from tsbatch.diagnosis.prometheus import from_prometheus

    if not is_address(url):
        raise UsageError(f"{url} is not an address; expected one like http://127.0.0.1:8082/metrics")
    known = _known(model, name, server) if model is not None and server is not None else None
    with progress(f"watching {url} for {seconds:g} s"):
        return from_prometheus(url, seconds=seconds, model=model, known=known)


def _from_log(path: Path, model: str | None, name: str, server: str | None, *, own_server: bool) -> Diagnosis:
    from tsbatch.diagnosis.data_sources import choose, of_model_log
    from tsbatch.diagnosis.ts_log import read_log, size_of

    megabytes = size_of(path) / MEGABYTE
    with progress(f"reading {path}, MB", total=round(megabytes, 1)) as step:
        logs = read_log(path, lambda amount: step.advance(round(amount / MEGABYTE, 1)))
    chosen = choose(logs, model)
    known = _known(f"{chosen.name}/{chosen.version}", name, server) if own_server or server else Known()
    return of_model_log(chosen, known, source=str(path), others=[one for one in logs if one is not chosen])


def _known(model: str, name: str, server: str | None) -> Known:
    from tsbatch.diagnosis.server_facts import known_of
    from tsbatch.serving.management_client import ModelNotFound

    model_name, _, version = model.partition("/")
    with connect(name, server) as (management, _):
        try:
            return known_of(management, model_name, version or None)
        except ModelNotFound:  # unregistered since, but still in the log
            return Known()
