"""The verb plan of the panel Measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsbatch.cli.options import check_finite, check_positive, refuse
from tsbatch.cli.simulate_command import Drawn, OverheadText, Trace, Variation, read_service_option
from tsbatch.errors import UsageError

if TYPE_CHECKING:
    # They take NumPy along, which --help has no time for.
    from tsbatch.simulation.capacity_plan import Plan, Unit
    from tsbatch.simulation.planner import Limits, Stream
    from tsbatch.simulation.service_time import ServiceTime

PANEL = "Measure"
REQUESTS = 50_000
WORKERS = 4
BATCH_SIZE = 32
"""Largest values that are tried where nothing measured says others."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("plan", rich_help_panel=PANEL)(plan_command)


def plan_command(
    context: typer.Context,
    service: Annotated[
        list[str],
        typer.Option(
            help="File of bench or check, or in ms: 20ms, 5+2*n, 1:20,8:60; several for several numbers of workers."
        ),
    ],
    p99: Annotated[str, typer.Option(help="The most that P99 may be, as 100ms.")],
    rate: Annotated[float | None, typer.Option(help="Requests a second to plan for.")] = None,
    arrivals: Annotated[Drawn, typer.Option(help="How they follow each other.")] = "poisson",
    trace: Trace = None,
    scale: Annotated[str, typer.Option(help="Plan for so many times that load; several as 10,100,1000.")] = "1",
    headroom: Annotated[float, typer.Option(min=0, help="So much more must be kept too, as a share.")] = 0.1,
    max_workers: Annotated[
        int | None, typer.Option(min=1, help=f"Most workers of a machine (its cores, or {WORKERS}).")
    ] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(min=1, help=f"Largest batchSize (the largest measured, or {BATCH_SIZE}).")
    ] = None,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Answer in replicas of one worker each: Ray Serve, KServe.")
    ] = False,
    queue_size: Annotated[int, typer.Option(min=1, help="jobQueueSize.")] = 100,
    price: Annotated[float | None, typer.Option(min=0, help="Of a machine.")] = None,
    variation: Variation = 0.0,
    overhead: OverheadText = None,
    requests: Annotated[int, typer.Option(min=1000, help="Requests of each simulation.")] = REQUESTS,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that is random.")] = 0,
    html: Annotated[Path | None, typer.Option(help="File for a report with curves.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say which settings and how many machines or replicas a load needs, from measured service times."""
    from tsbatch.report.html_page import check_place, save
    from tsbatch.report.plan_report import report_of_plans
    from tsbatch.simulation.capacity_plan import SCHEMA, make_plan
    from tsbatch.simulation.planner import Goal, Planner
    from tsbatch.system import console
    from tsbatch.tuning.objective import read_time

    if html:
        check_place(html)
    goal = Goal(p99=read_time(p99, "--p99"), headroom=headroom)
    check_positive({"--rate": rate})
    check_finite({"--headroom": headroom, "--price": price, "--variation": variation})
    if trace:
        refuse(context, ["arrivals"], "those of --trace follow each other as they were recorded")
    services = [read_service_option(one, variation, overhead) for one in service]
    stream, base = _stream(rate, arrivals, trace, seed)
    if replicas and max_workers is not None:
        raise UsageError("--replicas are of one worker each; leave out --max-workers")
    limits = _limits(services, 1 if replicas else max_workers, max_batch_size, queue_size)
    factors = _factors(scale)
    check_positive({"the largest --scale of the rate": base * factors[-1]})
    total = len(factors) * sum(1 for _ in limits.grid(goal.p99))
    with console.progress("trying settings", total=total) as step:
        planner = Planner(stream, services, goal, limits, fine=requests, tell=step.advance)
        unit: Unit = "replica" if replicas else "machine"
        plans = [make_plan(planner, base * factor, price=price, unit=unit) for factor in factors]
    if html:
        save(report_of_plans(plans), html)
    if as_json:
        console.emit_json({"schema": SCHEMA, "kind": "plan", "plans": [plan.to_json() for plan in plans]})
    else:
        _show(plans)


def _stream(rate: float | None, arrivals: Drawn, trace: Path | None, seed: int) -> tuple[Stream, float]:
    from tsbatch.simulation.planner import Stream
    from tsbatch.simulation.workload import rate_of, read_recorded

    if (rate is None) == (trace is None):
        raise UsageError("expected one of --rate and --trace")
    if trace is None:
        assert rate is not None
        return Stream(arrivals, seed=seed), rate
    recording = read_recorded(trace)
    if not (recorded := rate_of(recording.times)):
        raise UsageError(f"{trace} holds {len(recording.times)} arrivals at one moment; expected more, over some time")
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


def _factors(text: str) -> list[float]:
    try:
        factors = [float(word) for word in text.split(",")]
    except ValueError:
        factors = []
    if not factors or not all(0 < factor < float("inf") for factor in factors):
        raise UsageError(f"--scale is {text!r}; expected positive numbers like 10,100,1000")
    return sorted(factors)


def _show(plans: list[Plan]) -> None:
    from tsbatch.report.plan_report import headline, others, plan_columns, plan_rows
    from tsbatch.system import console

    last = plans[-1]
    for plan in plans:
        console.out.print(headline(plan), markup=False, soft_wrap=True)
    console.table(plan_columns(plans), plan_rows(plans))
    settings = others(last)
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
