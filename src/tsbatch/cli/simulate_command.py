"""The verb simulate of the panel Measure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tsbatch.cli.options import check_finite, check_positive, given, refuse
from tsbatch.errors import UsageError

if TYPE_CHECKING:
    # They take NumPy along, which --help has no time for.
    from tsbatch.bench.request_table import Column
    from tsbatch.simulation.batching_rules import Overhead
    from tsbatch.simulation.service_time import ServiceTime
    from tsbatch.simulation.workload import Clients

PANEL = "Measure"
REQUESTS = 100_000

Drawn = Literal["poisson", "uniform", "bursts"]
ServiceText = Annotated[
    str, typer.Option(help="File of bench or check, or in ms: 20ms, 5+2*n, or by batch size 1:20,8:60.")
]
Variation = Annotated[
    float, typer.Option(min=0, help="Standard deviation of a service time that is no file, as a share of its mean.")
]
OverheadText = Annotated[
    str | None,
    typer.Option("--overhead", help="TorchServe's own ms: of a request outside its worker, a batch, a request in it."),
]
Trace = Annotated[
    Path | None,
    typer.Option(help="Recorded arrivals instead: a file of bench (its last run), a log folder, or times, one a line."),
]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("simulate", rich_help_panel=PANEL)(simulate_command)


def simulate_command(
    context: typer.Context,
    service: ServiceText,
    workers: Annotated[int, typer.Option(min=1, help="Workers of the model.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="batchSize.")] = 1,
    max_batch_delay: Annotated[int, typer.Option(min=0, help="maxBatchDelay, ms.")] = 100,
    queue_size: Annotated[int, typer.Option(min=1, help="jobQueueSize.")] = 100,
    rate: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    arrivals: Annotated[Drawn, typer.Option(help="How they follow each other.")] = "poisson",
    concurrency: Annotated[int | None, typer.Option(min=1, help="Clients of a closed loop instead.")] = None,
    think: Annotated[float, typer.Option(min=0, help="Ms that each of them thinks, on average.")] = 0.0,
    trace: Trace = None,
    scale: Annotated[float, typer.Option(help="So many times the recorded requests.")] = 1.0,
    requests: Annotated[int, typer.Option(min=1, help="How many, at most.")] = REQUESTS,
    variation: Variation = 0.0,
    overhead: OverheadText = None,
    limit: Annotated[float | None, typer.Option(help="Goodput: answers within so many ms.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is random.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the result, as bench writes it.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="File for a report to read in a browser.", metavar="FILE")] = None,
    save_service: Annotated[Path | None, typer.Option(help="File for the service time.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, raw samples included.")] = False,
) -> None:
    """Simulate TorchServe's batching: what a load would see with these settings."""
    from tsbatch.bench.page import show
    from tsbatch.report.bench_report import report_of_bench
    from tsbatch.report.html_page import check_place, save
    from tsbatch.simulation.batching_rules import Settings
    from tsbatch.simulation.bench_result import as_result
    from tsbatch.simulation.simulator import simulate
    from tsbatch.system import console

    if html:
        check_place(html)
    check_positive({"--rate": rate, "--scale": scale, "--limit": limit})
    check_finite({"--variation": variation, "--think": think})
    measured = read_service_option(service, variation, overhead)
    stream, load = _load(rate, arrivals, concurrency, think, trace, scale, requests, seed)
    _refuse_ignored(context, {"rate": "arrivals", "concurrency": "think", "trace": "scale"})
    settings = Settings(workers=workers, batch_size=batch_size, max_batch_delay=max_batch_delay, queue_size=queue_size)
    simulated = simulate(settings, stream, measured.with_workers(workers), seed=seed)
    remarks = _remarks(load, measured, workers, batch_size)
    result = as_result(simulated, settings, {**load, "limit": limit, "seed": seed}, measured.source or service, remarks)
    if save_service:
        measured.save(save_service)
    if output:
        result.save(output)
    if html:
        save(report_of_bench(result), html)
    if as_json:
        console.emit_json(result.to_json())
    else:
        show(result)


def _refuse_ignored(context: typer.Context, belonging: Mapping[str, str]) -> None:
    there = given(context)
    for load, option in belonging.items():
        if load not in there:
            refuse(context, [option], f"it goes with --{load}")


def _remarks(load: Mapping[str, Any], service: ServiceTime, workers: int, batch_size: int) -> list[str]:
    from tsbatch.simulation.capacity_plan import grounds_of_machine

    recorded = [f"arrivals: {load['recorded']}"] if "recorded" in load else []
    guessed = grounds_of_machine([service], service, workers, batch_size)[1]
    return [*recorded, *(f"extrapolated: {guess}" for guess in guessed)]


def read_service_option(text: str, variation: float, overhead: str | None) -> ServiceTime:
    """The service time that ``--service`` names, with the overhead that somebody gave.

    Raises:
        UsageError: it is none.
        OSError: its file cannot be read.
    """
    from dataclasses import replace

    from tsbatch.simulation.fitting import read_service
    from tsbatch.simulation.overhead import TYPICAL
    from tsbatch.simulation.service_time import parse

    given = None if overhead is None else _overhead(overhead)
    path = Path(text)
    if path.suffix == ".json" or path.exists():
        if variation:
            raise UsageError("--variation goes with a service time that is no file: a file has its own spread")
        measured = read_service(path)
        return measured if given is None else replace(measured, overhead=given)
    return parse(text, variation=variation, overhead=given or TYPICAL)


def _overhead(text: str) -> Overhead:
    from tsbatch.simulation.batching_rules import Overhead

    try:
        frontend, batch, request = (float(word) for word in text.split(","))
    except ValueError:
        frontend = batch = request = -1.0
    if not all(0 <= one < float("inf") for one in (frontend, batch, request)):
        raise UsageError(f"--overhead is {text!r}; expected three times in ms, like 1,1,0.1")
    return Overhead(frontend=frontend, batch=batch, request=request)


def _load(
    rate: float | None,
    arrivals: Drawn,
    concurrency: int | None,
    think: float,
    trace: Path | None,
    scale: float,
    requests: int,
    seed: int,
) -> tuple[Column | Clients, dict[str, Any]]:
    from tsbatch.bench.send_times import Arrivals
    from tsbatch.simulation.workload import Clients, read_recorded, scaled, take

    options = {"--rate": rate, "--concurrency": concurrency, "--trace": trace}
    given = [option for option, value in options.items() if value is not None]
    if len(given) != 1:
        raise UsageError(f"{' and '.join(given) or 'no load'}; expected one of {', '.join(options)}")
    if concurrency:
        load = {"loop": "closed", "arrivals": None, "steps": [float(concurrency)]}
        return Clients(concurrency, requests, think=think, seed=seed), load
    if trace:
        recording = read_recorded(trace)
        # Each comes so many times at least: no more are needed for so many requests.
        needed = math.ceil(requests / int(scale)) + 1 if scale >= 1 else None
        times = recording.times[:needed]
        part = f", of which the first {times[-1]:.4g} s are simulated" if len(times) < len(recording.times) else ""
        load = {"loop": "open", "arrivals": "trace", "steps": [], "recorded": f"{recording}{part}"}
        return scaled(times, scale, seed)[:requests], load
    assert rate is not None
    load = {"loop": "open", "arrivals": arrivals, "steps": [rate]}
    return take(Arrivals(arrivals, rate, seed), requests), load
