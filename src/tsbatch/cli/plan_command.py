"""The command ``plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from tsbatch.cli import options
from tsbatch.cli.options import check_finite, check_positive, positive_numbers, refuse
from tsbatch.cli.simulate_command import (
    SERVICE,
    Arrivals,
    OverheadText,
    Queue,
    Trace,
    Variation,
    read_service_option,
)
from tsbatch.errors import UsageError

if TYPE_CHECKING:
    # They import NumPy, which would slow --help down.
    from tsbatch.simulation.capacity_plan import Plan, Unit
    from tsbatch.simulation.planner import Limits, Stream
    from tsbatch.simulation.service_time import ServiceTime

REQUESTS = 50_000
WORKERS = 4
BATCH_SIZE = 32
"""Largest values to try if the measurements do not give others."""

P99 = Annotated[str, Option(help="Maximum P99 latency, such as 100ms.")]


def plan_command(
    context: typer.Context,
    service: Annotated[list[str], Option(help=f"{SERVICE}; can be repeated for different numbers of workers.")],
    p99: P99,
    rate: Annotated[float | None, Option(help="Requests per second to plan for.")] = None,
    arrivals: Arrivals = "poisson",
    trace: Trace = None,
    scale: Annotated[str, Option(help="Multiples of that load to plan for, such as 10,100,1000.")] = "1",
    headroom: Annotated[float, Option(min=0, help="Reserve capacity, as a fraction of the load.")] = 0.1,
    max_workers: Annotated[
        int | None, Option(min=1, help=f"Maximum workers per machine (default: its cores, or {WORKERS}).")
    ] = None,
    max_batch_size: Annotated[
        int | None, Option(min=1, help=f"Maximum batchSize (default: the largest measured, or {BATCH_SIZE}).")
    ] = None,
    replicas: Annotated[
        bool, Option("--replicas", help="Plan replicas of one worker each, for Ray Serve or KServe.")
    ] = False,
    queue_size: Queue = 100,
    price: Annotated[float | None, Option(min=0, help="Price of a machine or replica.")] = None,
    variation: Variation = 0.0,
    overhead: OverheadText = None,
    requests: Annotated[int, Option(min=1000, help="Requests per simulation.")] = REQUESTS,
    seed: options.Seed = 0,
    html: options.Html = None,
    as_json: options.Json = False,
) -> None:
    """Compute the settings and the number of machines or replicas that a load needs, from measured service times."""
    from tsbatch.simulation.capacity_plan import make_plan
    from tsbatch.simulation.planner import Goal, Planner
    from tsbatch.system import console
    from tsbatch.tuning.objective import read_time

    goal = Goal(p99=read_time(p99, "--p99"), headroom=headroom)
    check_positive({"--rate": rate})
    check_finite({"--headroom": headroom, "--price": price, "--variation": variation})
    if trace:
        refuse(context, ["arrivals"], "the requests of --trace arrive as they were recorded")
    services = [read_service_option(one, variation, overhead) for one in service]
    stream, base = _stream(rate, arrivals, trace, seed)
    if replicas and max_workers is not None:
        raise UsageError("--replicas have one worker each; omit --max-workers")
    limits = _limits(services, 1 if replicas else max_workers, max_batch_size, queue_size)
    factors = sorted(positive_numbers("--scale", scale, "10,100,1000"))
    check_positive({"the largest --scale of the rate": base * factors[-1]})
    with console.progress("trying settings", total=len(factors) * sum(1 for _ in limits.grid(goal.p99))) as step:
        planner = Planner(stream, services, goal, limits, fine=requests, tell=step.advance)
        unit: Unit = "replica" if replicas else "machine"
        plans = [make_plan(planner, base * factor, price=price, unit=unit) for factor in factors]
    _show(plans, html=html, as_json=as_json)


def _stream(
    rate: float | None, arrivals: options.ArrivalPattern, trace: Path | None, seed: int
) -> tuple[Stream, float]:
    from tsbatch.simulation.planner import Stream
    from tsbatch.simulation.workload import rate_of, read_recorded

    if (rate is None) == (trace is None):
        raise UsageError("give either --rate or --trace")
    if trace is None:
        assert rate is not None
        return Stream(arrivals, seed=seed), rate
    recording = read_recorded(trace)
    if not (recorded := rate_of(recording.times)):
        raise UsageError(f"{trace} has {len(recording.times)} arrivals at one moment; expected more, over a period")
    return Stream("trace", recording.times, seed, str(recording)), recorded


def _limits(services: list[ServiceTime], workers: int | None, batch_size: int | None, queue_size: int) -> Limits:
    from tsbatch.simulation.planner import Limits

    cores = max((one.machine.cores or 0 for one in services), default=0)
    measured = [max(1, int(one.largest / max(one.items))) for one in services if one.source]
    return Limits(
        workers=workers or cores or WORKERS,
        batch_size=batch_size or (max(measured) if measured else BATCH_SIZE),
        queue_size=queue_size,
    )


def _show(plans: list[Plan], *, html: Path | None, as_json: bool) -> None:
    from tsbatch.report.html_page import save
    from tsbatch.report.plan_report import headline, plan_table, report_of_plans, settings_table
    from tsbatch.simulation.capacity_plan import SCHEMA
    from tsbatch.system import console

    if html:
        save(report_of_plans(plans), html)
    if as_json:
        console.emit_json({"schema": SCHEMA, "kind": "plan", "plans": [plan.to_json() for plan in plans]})
        return
    last = plans[-1]
    for plan in plans:
        console.out.print(headline(plan), markup=False, soft_wrap=True)
    table, settings = plan_table(plans), settings_table(last)
    console.table(table.columns, table.rows)
    console.out.print()
    console.table(settings.columns, settings.rows, title=f"{settings.title}, for {last.rate:g} requests/s")
    rows = [
        [
            f"{point.rate:.0f}",
            f"{point.p50:.1f}",
            f"{point.p99:.1f}",
            f"{100 * point.refused:.2f}",
            f"{point.batch:.1f}",
            point.needed,
        ]
        for point in last.curve
    ]
    console.out.print()
    columns = ["requests/s", "P50 ms", "P99 ms", "refused %", "batch", f"{last.unit}s needed"]
    console.table(columns, rows, title=f"{last.counted} at other rates")
    for kind, sentences in (("measured", last.measured), ("extrapolated", last.guessed)):
        for sentence in sentences:
            console.out.print(f"{kind}: {sentence}", markup=False, soft_wrap=True)
