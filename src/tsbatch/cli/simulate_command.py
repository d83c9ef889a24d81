"""The command ``simulate``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from tsbatch.cli import options
from tsbatch.cli.bench_commands import show_result
from tsbatch.cli.options import check_finite, check_positive, given, refuse
from tsbatch.errors import UsageError

if TYPE_CHECKING:
    # They import NumPy, which would slow --help down.
    from tsbatch.bench.request_table import Column
    from tsbatch.simulation.batching_rules import Overhead
    from tsbatch.simulation.service_time import ServiceTime
    from tsbatch.simulation.workload import Clients

REQUESTS = 100_000
SERVICE = "Service time: a result file from bench or check, or in ms: 20ms, 5+2*n, or by batch size 1:20,8:60"

Arrivals = Annotated[options.ArrivalPattern, Option(help="Arrival pattern of the requests.")]
Queue = Annotated[int, Option(min=1, help="Maximum number of waiting requests (jobQueueSize).")]
Variation = Annotated[
    float, Option(min=0, help="Standard deviation of a service time given in ms, as a fraction of its mean.")
]
OverheadText = Annotated[
    str | None,
    Option(
        "--overhead",
        help="TorchServe's overhead in ms, as three numbers separated by commas: per request outside the worker, per"
        " batch, and per request within a batch.",
    ),
]
Trace = Annotated[
    Path | None,
    Option(
        help="Recorded arrivals instead of --rate: a result file from bench (its last run), a log folder, or a file"
        " with one time per line."
    ),
]


def simulate_command(
    context: typer.Context,
    service: Annotated[str, Option(help=f"{SERVICE}.")],
    workers: Annotated[int, Option(min=1, help="Number of workers.")] = 1,
    batch_size: Annotated[int, Option(min=1, help=f"{options.BATCH_SIZE} (batchSize).")] = 1,
    max_batch_delay: Annotated[int, Option(min=0, help=f"{options.BATCH_DELAY} (maxBatchDelay).")] = 100,
    queue_size: Queue = 100,
    rate: options.Rate = None,
    arrivals: Arrivals = "poisson",
    concurrency: Annotated[int | None, Option(min=1, help="Clients in a closed loop, instead of --rate.")] = None,
    think: Annotated[float, Option(min=0, help="Mean time between a client's requests, in ms.")] = 0.0,
    trace: Trace = None,
    scale: Annotated[float, Option(help="Factor by which to scale the recorded rate.")] = 1.0,
    requests: Annotated[int, Option(min=1, help="Maximum number of requests to simulate.")] = REQUESTS,
    variation: Variation = 0.0,
    overhead: OverheadText = None,
    limit: options.GoodputLimit = None,
    seed: options.Seed = 0,
    output: Annotated[
        Path | None, Option("--output", "-o", help="File for the result, in the same format that bench writes.")
    ] = None,
    html: options.Html = None,
    save_service: Annotated[Path | None, Option(help="Write the service time to this file.", metavar="FILE")] = None,
    as_json: options.RawJson = False,
) -> None:
    """Simulate TorchServe's batching: predict the latency of a load with these settings."""
    from tsbatch.simulation.batching_rules import Settings
    from tsbatch.simulation.bench_result import as_result
    from tsbatch.simulation.simulator import simulate

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
    show_result(result, output=output, html=html, as_json=as_json)


def _refuse_ignored(context: typer.Context, dependent: Mapping[str, str]) -> None:
    present = given(context)
    for load, option in dependent.items():
        if load not in present:
            refuse(context, [option], f"it needs --{load}")


def _remarks(load: Mapping[str, Any], service: ServiceTime, workers: int, batch_size: int) -> list[str]:
    from tsbatch.simulation.capacity_plan import grounds_of_machine

    recorded = [f"arrivals: {load['recorded']}"] if "recorded" in load else []
    guessed = grounds_of_machine([service], service, workers, batch_size)[1]
    return [*recorded, *(f"extrapolated: {guess}" for guess in guessed)]


def read_service_option(text: str, variation: float, overhead: str | None) -> ServiceTime:
    """Read the service time of ``--service``, with the overhead of ``--overhead``.

    Raises:
        UsageError: one of them is not valid.
        OSError: the file cannot be read.
    """
    from dataclasses import replace

    from tsbatch.simulation.fitting import read_service
    from tsbatch.simulation.overhead import TYPICAL
    from tsbatch.simulation.service_time import parse

    times = None if overhead is None else _overhead(overhead)
    path = Path(text)
    if path.suffix == ".json" or path.exists():
        if variation:
            raise UsageError("--variation is for a service time without a file; a file has its own spread")
        measured = read_service(path)
        return measured if times is None else replace(measured, overhead=times)
    return parse(text, variation=variation, overhead=times or TYPICAL)


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
    arrivals: options.ArrivalPattern,
    concurrency: int | None,
    think: float,
    trace: Path | None,
    scale: float,
    requests: int,
    seed: int,
) -> tuple[Column | Clients, dict[str, Any]]:
    from tsbatch.bench.send_times import Arrivals
    from tsbatch.simulation.workload import Clients, read_recorded, scaled, take

    loads = {"--rate": rate, "--concurrency": concurrency, "--trace": trace}
    chosen = [load for load, value in loads.items() if value is not None]
    if len(chosen) != 1:
        raise UsageError(f"{' and '.join(chosen) or 'no load'}; expected one of {', '.join(loads)}")
    if concurrency:
        load = {"loop": "closed", "arrivals": None, "steps": [float(concurrency)]}
        return Clients(concurrency, requests, think=think, seed=seed), load
    if trace:
        recording = read_recorded(trace)
        # Each recorded request is repeated at least int(scale) times, so the rest is not needed.
        needed = math.ceil(requests / int(scale)) + 1 if scale >= 1 else None
        times = recording.times[:needed]
        part = f", first {times[-1]:.4g} s simulated" if len(times) < len(recording.times) else ""
        load = {"loop": "open", "arrivals": "trace", "steps": [], "recorded": f"{recording}{part}"}
        return scaled(times, scale, seed)[:requests], load
    assert rate is not None
    load = {"loop": "open", "arrivals": arrivals, "steps": [rate]}
    return take(Arrivals(arrivals, rate, seed), requests), load
