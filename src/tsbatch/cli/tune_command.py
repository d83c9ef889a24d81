"""The verb tune of the panel Measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tsbatch.cli.options import check_finite, check_positive, given, refuse
from tsbatch.cli.server_commands import Json, Name
from tsbatch.errors import UsageError
from tsbatch.serving.instance import DEFAULT_NAME
from tsbatch.system import console

if TYPE_CHECKING:
    from tsbatch.tuning.objective import Goal
    from tsbatch.tuning.ranking import Traffic
    from tsbatch.tuning.session import Order

PANEL = "Measure"
CLIENTS = 8
SHOWN = 12
"""Settings of the ranking that are shown."""

Objective = Literal["throughput", "p99", "p50", "memory"]
Kind = Literal["careful", "tpe"]
Arrivals = Literal["poisson", "uniform", "bursts"]


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("tune", rich_help_panel=PANEL)(tune_command)


def tune_command(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(help="A model on the running server, or a .mar file.")] = None,
    data: Annotated[Path | None, typer.Option(help="What to send: JSON lines, text lines, CSV, or a folder.")] = None,
    p99: Annotated[str | None, typer.Option(help="The most that P99 may be, as 100ms.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help=f"Clients of a closed loop ({CLIENTS}).")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second of an open loop.")] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="How requests of an open loop follow each other.")] = "poisson",
    max_memory: Annotated[
        str | None, typer.Option(help="The most that the workers may hold for themselves together, as 8GB.")
    ] = None,
    max_gpu_memory: Annotated[
        str | None, typer.Option(help="The most that they may hold of any GPU's memory, as 80% (90%).")
    ] = None,
    objective: Annotated[
        Objective | None, typer.Option(help="What to make better: throughput with clients, p99 with a rate.")
    ] = None,
    live: Annotated[bool, typer.Option("--live", help="On the server in use; each step registers anew.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Measure what there is, rank the rest, and stop.")] = False,
    search: Annotated[Kind, typer.Option(help="One knob at a time, or Optuna's sampler.")] = "careful",
    duration: Annotated[float, typer.Option(min=1, help="Seconds of each run.")] = 10.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before each run that do not count.")] = 3.0,
    budget: Annotated[int, typer.Option(min=8, help="Runs in all.")] = 36,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for journal, log and report (tune-MODEL).")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew instead of going on with the journal.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write model-config.yaml there too.")] = False,
    content_type: Annotated[str | None, typer.Option(help="Content type, instead of the data's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random arrivals and of the simulator.")] = 0,
    restore: Annotated[
        bool, typer.Option("--restore", help="Put back what a killed tuning left on a server in use; nothing else.")
    ] = False,
    name: Name = DEFAULT_NAME,
    json: Json = False,
) -> None:
    """Find better settings, one knob at a time; exit code 1 when none keeps the limits.

    A private copy of the model is measured on a server of its own, which ends with the tuner. What was interrupted goes
    on where it was when the same command is given again.
    """
    if restore:
        refuse(context, given(context).keys() - {"restore", "name", "json"}, "--restore only puts back what there was")
        _restore(name, as_json=json)
        return
    if model is None or data is None:
        raise UsageError("nothing to tune; expected: tsbatch tune NAME|MAR --data FILE")
    if rate is None:
        refuse(context, ["arrivals"], "it is about the requests of --rate")
    if offline:
        refuse(context, ["search", "budget", "write"], "--offline only measures what there is and ranks the rest")
    check_positive({"--rate": rate, "--duration": duration})
    check_finite({"--warm-up": warm_up})
    from tsbatch.bench.request_bodies import read_bodies
    from tsbatch.tuning.measurement import Script
    from tsbatch.tuning.session import Order

    traffic = traffic_of(concurrency, rate, arrivals, seed)
    order = Order(
        model=model,
        data=data,
        goal=goal_of(objective, p99, max_memory, max_gpu_memory, open_loop=rate is not None),
        script=Script(traffic=traffic, bodies=read_bodies(data, content_type), seconds=duration, warm_up=warm_up),
        search=search,
        live=live,
        budget=budget,
        folder=output or Path(f"tune-{Path(model).name.partition('.')[0]}"),
        fresh=fresh,
        instance=name,
    )
    if not _rank(order, as_json=json) if offline else not _tune(order, write=write, as_json=json):
        raise typer.Exit(1)


def traffic_of(concurrency: int | None, rate: float | None, arrivals: Arrivals, seed: int) -> Traffic:
    """The load that the options say.

    Raises:
        UsageError: they say two.
    """
    from tsbatch.tuning.ranking import Traffic

    if concurrency is not None and rate is not None:
        raise UsageError("--concurrency and --rate are different loads; give one of them")
    clients = None if rate is not None else concurrency or CLIENTS
    return Traffic(clients=clients, rate=rate, kind=arrivals, seed=seed)


def goal_of(
    objective: Objective | None,
    p99: str | None,
    max_memory: str | None,
    max_gpu_memory: str | None,
    *,
    open_loop: bool,
) -> Goal:
    """The goal that the options say.

    Raises:
        UsageError: a time, a size or a part is none, or the objective is nothing that a server could change.
    """
    from tsbatch.tuning.objective import MOST_OF_GPU, Goal, read_share, read_size, read_time

    if open_loop and objective == "throughput":
        raise UsageError("with --rate the requests/s are the load's; expected --objective p99, p50 or memory")
    return Goal(
        objective=objective or ("p99" if open_loop else "throughput"),
        p99=None if p99 is None else read_time(p99, "--p99"),
        memory=None if max_memory is None else read_size(max_memory, "--max-memory"),
        gpu_memory=MOST_OF_GPU if max_gpu_memory is None else read_share(max_gpu_memory, "--max-gpu-memory"),
        open_loop=open_loop,
    )


def _tune(order: Order, *, write: bool, as_json: bool) -> bool:
    """Whether there is a recommendation."""
    from tsbatch.system.signals import end_on_signals
    from tsbatch.tuning.page import Screen, show
    from tsbatch.tuning.recommendation import to_json
    from tsbatch.tuning.session import place_of, tune, write_config

    script, goal = order.script, order.goal
    with end_on_signals(), console.progress("tuning", order.budget) as step:
        screen = Screen(step, goal, order.budget, script.seconds + script.warm_up)
        with place_of(order, screen) as place:
            outcome = tune(order, place, screen)
            written = write_config(place, outcome, order.folder) if write else None
    if as_json:
        console.emit_json({**to_json(outcome, goal, script.seconds), "folder": order.folder, "written": written})
    else:
        show(outcome, goal, script.seconds)
        console.say(f"journal, log and report: {order.folder}" + (f"; written: {written}" if written else ""))
    return outcome.recommended is not None


def _rank(order: Order, *, as_json: bool) -> bool:
    """Whether a setting is expected to keep the limits."""
    from tsbatch.system.signals import end_on_signals
    from tsbatch.tuning.page import Screen, show_ranking
    from tsbatch.tuning.session import place_of, rank

    with end_on_signals(), console.progress("measuring what there is") as step:
        screen = Screen(step, order.goal, order.budget, order.script.seconds + order.script.warm_up)
        with place_of(order, screen) as place:
            ranked = rank(order, place)
    if as_json:
        rows = [
            {"knobs": one.knobs.to_json(), "figures": one.figures.to_json(), "keeps_limits": one.keeps}
            for one in ranked
        ]
        console.emit_json({"schema": 1, "kind": "ranking", "settings": rows})
    else:
        show_ranking(ranked[:SHOWN], order.goal)
        console.say("note: these are the simulator's expectations; nothing but the present setting was measured")
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
        console.say(f"{before.model} is back at {before}")
