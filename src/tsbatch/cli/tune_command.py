"""The command ``tune``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from tsbatch.cli import options
from tsbatch.cli.exit_codes import FINDINGS
from tsbatch.cli.options import check_finite, check_positive, given, refuse
from tsbatch.errors import UsageError
from tsbatch.serving.instance import DEFAULT_NAME
from tsbatch.system import console

if TYPE_CHECKING:
    from tsbatch.tuning.measurement import Workload
    from tsbatch.tuning.objective import Goal
    from tsbatch.tuning.ranking import Traffic
    from tsbatch.tuning.session import TuneConfig

MAX_SHOWN = 12
"""Settings of the ranking to print."""

Objective = Literal["throughput", "p99", "p50", "memory"]
Kind = Literal["careful", "tpe"]

Data = Annotated[Path | None, Option(help="Data to send: JSON lines, text lines, CSV, or a folder of images.")]
P99 = Annotated[str | None, Option(help="Maximum P99 latency, such as 100ms.")]
MaxMemory = Annotated[str | None, Option(help="Maximum private memory of all workers together, such as 8GB.")]
MaxGpuMemory = Annotated[
    str | None, Option(help="Maximum share of any GPU's memory for the workers, such as 80% (default: 90%).")
]
Goals = Annotated[Objective | None, Option(help="Figure to improve (default: throughput, or p99 with --rate).")]
Live = Annotated[bool, Option("--live", help="Tune the server in use; each step registers the model again.")]
Offline = Annotated[bool, Option("--offline", help="Measure only the current settings, rank the others, and exit.")]
Search = Annotated[Kind, Option(help="Search method: careful changes one setting at a time, tpe is Optuna's sampler.")]
Duration = Annotated[float, Option(min=1, help="Duration of each run, in seconds.")]
Output = Annotated[
    Path | None, Option("--output", "-o", help="Folder for journal, log and report (default: tune-MODEL).")
]
Restore = Annotated[
    bool, Option("--restore", help="Restore the settings that a killed run changed on a server in use, and exit.")
]


def tune_command(
    context: typer.Context,
    model: Annotated[str | None, Argument(help="Model on the running server, or a .mar file.")] = None,
    data: Data = None,
    p99: P99 = None,
    concurrency: options.Concurrency = None,
    rate: options.Rate = None,
    arrivals: Annotated[options.ArrivalPattern, Option(help="Arrival pattern in an open loop.")] = "poisson",
    max_memory: MaxMemory = None,
    max_gpu_memory: MaxGpuMemory = None,
    objective: Goals = None,
    live: Live = False,
    offline: Offline = False,
    search: Search = "careful",
    duration: Duration = 10.0,
    warm_up: Annotated[float, Option(min=0, help="Warm-up before each run, in seconds; not counted.")] = 3.0,
    budget: Annotated[int, Option(min=8, help="Maximum number of runs.")] = 36,
    output: Output = None,
    fresh: Annotated[bool, Option("--fresh", help="Start over instead of resuming from the journal.")] = False,
    write: Annotated[bool, Option("--write", help="Also write model-config.yaml to that folder.")] = False,
    content_type: options.ContentType = None,
    seed: options.Seed = 0,
    restore: Restore = False,
    name: options.Name = DEFAULT_NAME,
    json: options.Json = False,
) -> None:
    """Find better settings, one change at a time; exit code 1 if none meets the limits.

    The tuner measures a copy of the model on a private server, and stops that server when it ends. Re-run the same
    command to resume after an interruption.
    """
    if restore:
        refuse(context, given(context).keys() - {"restore", "name", "json"}, "--restore only restores old settings")
        _restore(name, as_json=json)
        return
    if model is None or data is None:
        raise UsageError("nothing to tune; expected: tsbatch tune NAME|MAR --data FILE")
    if rate is None:
        refuse(context, ["arrivals"], "it needs --rate")
    if offline:
        refuse(context, ["search", "budget", "write"], "--offline only measures the current settings and ranks others")
    from tsbatch.tuning.session import TuneConfig

    config = TuneConfig(
        model=model,
        data=data,
        goal=goal_of(objective, p99, max_memory, max_gpu_memory, open_loop=rate is not None),
        workload=workload_of(traffic_of(concurrency, rate, arrivals, seed), data, content_type, duration, warm_up),
        search=search,
        live=live,
        budget=budget,
        folder=output or Path(f"tune-{Path(model).name.partition('.')[0]}"),
        fresh=fresh,
        instance=name,
    )
    if not _rank(config, as_json=json) if offline else not _tune(config, write=write, as_json=json):
        raise typer.Exit(FINDINGS)


def workload_of(traffic: Traffic, data: Path, content_type: str | None, duration: float, warm_up: float) -> Workload:
    """Read the data and describe the runs that the options ask for.

    Raises:
        UsageError: a number or the data is not valid.
        OSError: the data cannot be read.
    """
    from tsbatch.bench.request_bodies import read_bodies
    from tsbatch.tuning.measurement import Workload

    check_positive({"--duration": duration})
    check_finite({"--warm-up": warm_up})
    return Workload(traffic=traffic, bodies=read_bodies(data, content_type), seconds=duration, warm_up=warm_up)


def traffic_of(concurrency: int | None, rate: float | None, arrivals: options.ArrivalPattern, seed: int) -> Traffic:
    """Build the load from the options.

    Raises:
        UsageError: they contradict each other, or the rate is not positive.
    """
    from tsbatch.tuning.ranking import Traffic

    if concurrency is not None and rate is not None:
        raise UsageError("--concurrency and --rate are different loads; give one of them")
    check_positive({"--rate": rate})
    clients = None if rate is not None else concurrency or options.CLIENTS
    return Traffic(clients=clients, rate=rate, kind=arrivals, seed=seed)


def goal_of(
    objective: Objective | None,
    p99: str | None,
    max_memory: str | None,
    max_gpu_memory: str | None,
    *,
    open_loop: bool,
) -> Goal:
    """Build the goal from the options.

    Raises:
        UsageError: a time, size or share is not valid, or the settings cannot change the objective.
    """
    from tsbatch.tuning.objective import MAX_GPU_SHARE, Goal, read_share, read_size, read_time

    if open_loop and objective == "throughput":
        raise UsageError("with --rate the throughput is fixed; use --objective p99, p50 or memory")
    return Goal(
        objective=objective or ("p99" if open_loop else "throughput"),
        p99=None if p99 is None else read_time(p99, "--p99"),
        memory=None if max_memory is None else read_size(max_memory, "--max-memory"),
        gpu_memory=MAX_GPU_SHARE if max_gpu_memory is None else read_share(max_gpu_memory, "--max-gpu-memory"),
        open_loop=open_loop,
    )


def _tune(config: TuneConfig, *, write: bool, as_json: bool) -> bool:
    """Tune, print the outcome, and return whether there is a recommendation."""
    from tsbatch.system.signals import end_on_signals
    from tsbatch.tuning.page import Screen, render
    from tsbatch.tuning.recommendation import to_json
    from tsbatch.tuning.session import open_target, tune, write_config

    workload, goal = config.workload, config.goal
    with end_on_signals(), console.progress("tuning", config.budget) as step:
        screen = Screen(step, goal, config.budget, workload.seconds + workload.warm_up)
        with open_target(config, screen) as target:
            outcome = tune(config, target, screen)
            written = write_config(target, outcome, config.folder) if write else None
    if as_json:
        console.emit_json({**to_json(outcome, goal, workload.seconds), "folder": config.folder, "written": written})
    else:
        render(outcome, goal, workload.seconds)
        console.say(f"journal, log and report: {config.folder}" + (f"; written: {written}" if written else ""))
    return outcome.recommended is not None


def _rank(config: TuneConfig, *, as_json: bool) -> bool:
    """Rank the settings, print them, and return whether the best one is expected to meet the limits."""
    from tsbatch.system.signals import end_on_signals
    from tsbatch.tuning.page import Screen, render_ranking
    from tsbatch.tuning.session import open_target, rank

    with end_on_signals(), console.progress("measuring the current settings") as step:
        screen = Screen(step, config.goal, config.budget, config.workload.seconds + config.workload.warm_up)
        with open_target(config, screen) as target:
            ranked = rank(config, target)
    if as_json:
        rows = [
            {"knobs": asdict(one.settings), "figures": asdict(one.figures), "keeps_limits": one.keeps} for one in ranked
        ]
        console.emit_json({"schema": 1, "kind": "ranking", "settings": rows})
    else:
        render_ranking(ranked[:MAX_SHOWN], config.goal)
        console.say("note: only the current settings were measured; the figures of the others come from the simulator")
    return ranked[0].keeps


def _restore(name: str, *, as_json: bool) -> None:
    from tsbatch.operations.connection import reach
    from tsbatch.operations.rollback import restore
    from tsbatch.system.signals import end_on_signals

    with end_on_signals(), console.telling() as tell:
        instance = reach(name, tell=lambda _: None)
        with instance.management() as management:
            before = restore(management, instance, tell)
    if as_json:
        settings = {"workers": before.workers, "batch_size": before.batch_size, "max_batch_delay": before.delay}
        console.emit_json({"schema": 1, "model": before.model, **settings})
    else:
        console.say(f"restored {before.model}: {before}")
