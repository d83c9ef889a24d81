"""The verbs ``bench`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tsbatch.cli.options import check_finite, check_positive
from tsbatch.errors import UsageError

if TYPE_CHECKING:
    from tsbatch.bench.result_file import BenchResult
    from tsbatch.bench.run import Plan

PANEL = "Measure"
DURATION = 10.0
WARM_UP = 5.0
CLIENTS = 8

Arrivals = Literal["poisson", "uniform", "bursts"]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("bench", rich_help_panel=PANEL)(bench_command)
    app.command("compare", rich_help_panel=PANEL)(compare_command)


def bench_command(
    target: Annotated[str, typer.Argument(help="A model on the running server, or any address.")],
    data: Annotated[
        Path | None, typer.Option(help="What to send: JSON lines, text lines, CSV, or a folder of images. None: GET.")
    ] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help=f"Clients of a closed loop ({CLIENTS}).")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second of an open loop.")] = None,
    arrivals: Annotated[Arrivals | None, typer.Option(help="How requests of an open loop follow each other.")] = None,
    trace: Annotated[Path | None, typer.Option(help="An open loop by the times in a file, one a line.")] = None,
    steps: Annotated[
        str | None, typer.Option(help="A ramp, as 10,20,40: clients, or with --arrivals requests a second.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help=f"Seconds to measure each step ({DURATION:g}).")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests to send instead of --duration.")] = None,
    warm_up: Annotated[
        float | None, typer.Option(min=0, help=f"Seconds before each step that do not count ({WARM_UP:g}; trace: 0).")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How often to do all; 'compare' needs several.")] = 1,
    limit: Annotated[float | None, typer.Option(help="Goodput: answers within so many ms.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 30.0,
    connections: Annotated[int, typer.Option(min=1, help="The most connections of an open loop.")] = 1000,
    content_type: Annotated[str | None, typer.Option(help="Content type, instead of the data's own.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="A further header, as 'Name: value'; several times.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random arrivals.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File for the result and raw samples.")] = None,
    html: Annotated[Path | None, typer.Option(help="File for a report to read in a browser.", metavar="FILE")] = None,
    append: Annotated[bool, typer.Option("--append", help="Add to what --output holds, to take turns.")] = False,
    version: Annotated[str | None, typer.Option(help="The model's version; the default one when left out.")] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the server's instance.")] = "default",
    server: Annotated[
        str | None, typer.Option("--server", help="For an address: management address that tells of its model.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, raw samples included.")] = False,
) -> None:
    """Put a load on a model and tell the truth about it; exit code 1 when requests failed."""
    plan = make_plan(
        concurrency=concurrency,
        rate=rate,
        arrivals=arrivals,
        trace=trace,
        steps=steps,
        duration=duration,
        requests=requests,
        warm_up=warm_up,
        repeat=repeat,
        limit=limit,
        timeout=timeout,
        connections=connections,
        header=header or [],
        seed=seed,
    )
    from tsbatch.bench.page import show
    from tsbatch.bench.progress_view import View
    from tsbatch.bench.request_bodies import Body, read_bodies
    from tsbatch.bench.run import bench
    from tsbatch.bench.target import find_target
    from tsbatch.report.bench_report import report_of_bench
    from tsbatch.report.html_page import check_place, save
    from tsbatch.system import console
    from tsbatch.system.signals import end_on_signals

    if data is None and "://" not in target:
        raise UsageError(f"{target} needs something to send: give --data FILE")
    if html:
        check_place(html)
    bodies = read_bodies(data, content_type) if data else [Body(b"", "")]
    earlier = earlier_runs(output, append=append)
    found = find_target(target, instance=name, version=version, management=server)
    with end_on_signals(), View(None if plan.seconds is None else plan.seconds + plan.warm_up) as view:
        result = bench(found, bodies, plan, view.tell, earlier)
    if output:
        result.save(output)
    if html:
        save(report_of_bench(result), html)
    if as_json:
        console.emit_json(result.to_json())
    else:
        show(result)
    if any(step["failed"] for step in result.summary):
        raise typer.Exit(1)


def compare_command(
    before: Annotated[Path, typer.Argument(metavar="A", help="Result of a load test: bench --output A.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one, under the same load.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say whether B is better, worse or within the noise of A.

    Exit code 0 when B is better or within the noise, 1 when it is worse in any figure, 2 when single runs cannot tell.
    """
    from tsbatch.bench.comparison import compare
    from tsbatch.bench.page import show_comparison
    from tsbatch.bench.result_file import BenchResult
    from tsbatch.system import console

    comparison = compare(BenchResult.load(before), BenchResult.load(after))
    if as_json:
        console.emit_json(comparison.to_json())
    else:
        show_comparison(comparison)
    code = {"worse": 1, "cannot tell": 2}.get(comparison.verdict, 0)
    if code:
        raise typer.Exit(code)


def earlier_runs(output: Path | None, *, append: bool) -> BenchResult | None:
    """What is in the file already that runs are to be added to; asked before the work begins.

    Raises:
        UsageError: the file cannot be written, is no such file, or is not named.
    """
    from tsbatch.bench.result_file import BenchResult

    if append and output is None:
        raise UsageError("--append needs --output FILE")
    if output and (output.is_dir() or not output.parent.is_dir()):
        raise UsageError(f"--output {output}: {'is a folder' if output.is_dir() else 'there is no such folder'}")
    return BenchResult.load(output) if append and output and output.exists() else None


def make_plan(
    *,
    concurrency: int | None,
    rate: float | None,
    arrivals: Arrivals | None,
    trace: Path | None,
    steps: str | None,
    duration: float | None,
    requests: int | None,
    warm_up: float | None,
    repeat: int,
    limit: float | None,
    timeout: float,
    connections: int,
    header: list[str],
    seed: int,
) -> Plan:
    """The plan that the options say.

    Raises:
        UsageError: they contradict each other, or are no such thing.
        OSError: the trace cannot be read.
    """
    from tsbatch.bench.run import Plan
    from tsbatch.bench.send_times import read_trace

    loops = {"--concurrency": concurrency, "--rate": rate, "--trace": trace, "--steps": steps}
    given = [option for option, value in loops.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are different loads; give one of them")
    if arrivals and given not in (["--rate"], ["--steps"]):
        raise UsageError("--arrivals goes with --rate or --steps")
    if duration is not None and requests is not None:
        raise UsageError("--duration and --requests are two ends; give one of them")
    check_positive({"--rate": rate, "--duration": duration, "--timeout": timeout, "--limit": limit})
    check_finite({"--warm-up": warm_up})
    ramp = _numbers(steps) if steps is not None else []
    clients = [] if arrivals or rate or trace else _clients(ramp) if ramp else [concurrency or CLIENTS]
    by_time = requests is None and (trace is None or duration is not None)
    return Plan(
        clients=clients,
        rates=[] if clients or trace else ramp or [rate or 0.0],
        trace=read_trace(trace) if trace else None,
        arrivals=arrivals or "poisson",
        seconds=(duration or DURATION) if by_time else None,
        requests=requests,
        warm_up=(0.0 if trace else WARM_UP) if warm_up is None else warm_up,
        repeat=repeat,
        timeout=timeout,
        connections=connections,
        limit=limit,
        seed=seed,
        headers=dict(_header(one) for one in header),
    )


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < float("inf") for number in numbers):
        raise UsageError(f"--steps is {text!r}; expected positive numbers like 10,20,40")
    return numbers


def _clients(ramp: list[float]) -> list[int]:
    if not all(number.is_integer() for number in ramp):
        raise UsageError("--steps are numbers of clients, so whole ones; for requests a second add --arrivals poisson")
    return [int(number) for number in ramp]


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isascii() or not text.isprintable():
        raise UsageError(f"--header is {text!r}; expected 'Name: value'")
    return name.strip(), value.strip()
