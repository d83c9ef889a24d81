"""The commands ``bench`` and ``compare``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from tsbatch.cli import options
from tsbatch.cli.exit_codes import FINDINGS
from tsbatch.cli.options import check_finite, check_positive, positive_numbers
from tsbatch.errors import UsageError

if TYPE_CHECKING:
    from tsbatch.bench.result_file import BenchResult
    from tsbatch.bench.run import Plan

DURATION = 10.0
WARM_UP = 5.0

Data = Annotated[
    Path | None,
    Option(help="Data to send: JSON lines, text lines, CSV, or a folder of images; GET requests if omitted."),
]
Steps = Annotated[
    str | None, Option(help="Steps of a ramp, such as 10,20,40: clients, or requests per second with --arrivals.")
]
Duration = Annotated[float | None, Option(help=f"Duration of each step, in seconds (default: {DURATION:g}).")]
WarmUp = Annotated[
    float | None,
    Option(min=0, help=f"Warm-up before each step, in seconds; not counted (default: {WARM_UP:g}, or 0 with --trace)."),
]
Append = Annotated[
    bool, Option("--append", help="Append the runs to the --output file, so that variants can take turns.")
]
ServerOfUrl = Annotated[
    str | None, Option("--server", help="For a URL: management address of its server, to read the model's settings.")
]


def bench_command(
    target: Annotated[str, Argument(help="Model on the running server, or any URL.")],
    data: Data = None,
    concurrency: options.Concurrency = None,
    rate: options.Rate = None,
    arrivals: Annotated[options.ArrivalPattern | None, Option(help="Arrival pattern in an open loop.")] = None,
    trace: Annotated[Path | None, Option(help="File with one send time per line, for an open loop.")] = None,
    steps: Steps = None,
    duration: Duration = None,
    requests: Annotated[int | None, Option(min=1, help="Number of requests to send, instead of --duration.")] = None,
    warm_up: WarmUp = None,
    repeat: Annotated[int, Option(min=1, help="How many times to run the whole test; compare needs several.")] = 1,
    limit: options.GoodputLimit = None,
    timeout: Annotated[float, Option(help="Time limit for a response, in seconds.")] = 30.0,
    connections: Annotated[int, Option(min=1, help="Maximum number of connections in an open loop.")] = 1000,
    content_type: options.ContentType = None,
    header: Annotated[list[str] | None, Option(help="Additional header, as 'Name: value'; can be repeated.")] = None,
    seed: options.Seed = 0,
    output: Annotated[Path | None, Option("--output", "-o", help="File for the result with the raw samples.")] = None,
    html: options.Html = None,
    append: Append = False,
    version: options.Version = None,
    name: options.Name = "default",
    server: ServerOfUrl = None,
    as_json: options.RawJson = False,
) -> None:
    """Load-test a model and report reliable figures; exit code 1 if requests failed."""
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
    from tsbatch.bench.progress_view import progress_view
    from tsbatch.bench.request_bodies import Body, read_bodies
    from tsbatch.bench.run import bench
    from tsbatch.bench.target import find_target
    from tsbatch.system.signals import end_on_signals

    if data is None and "://" not in target:
        raise UsageError(f"{target} needs data to send: give --data FILE")
    bodies = read_bodies(data, content_type) if data else [Body(b"", "")]
    earlier = earlier_runs(output, append=append)
    found = find_target(target, instance=name, version=version, management=server)
    seconds = None if plan.seconds is None else plan.seconds + plan.warm_up
    with end_on_signals(), progress_view(seconds) as on_progress:
        result = bench(found, bodies, plan, on_progress, earlier)
    show_result(result, output=output, html=html, as_json=as_json)
    if any(step["failed"] for step in result.summary):
        raise typer.Exit(FINDINGS)


def show_result(result: BenchResult, *, output: Path | None, html: Path | None, as_json: bool) -> None:
    """Print the result of a measured or simulated load, and write its files."""
    from tsbatch.bench.page import show
    from tsbatch.report.bench_report import report_of_bench
    from tsbatch.report.html_page import save
    from tsbatch.system import console

    if output:
        result.save(output)
    if html:
        save(report_of_bench(result), html)
    if as_json:
        console.emit_json(result.to_json())
    else:
        show(result)


def compare_command(
    before: Annotated[Path, Argument(metavar="A", help="Result of a load test: tsbatch bench --output A.")],
    after: Annotated[Path, Argument(metavar="B", help="Another result, measured under the same load.")],
    as_json: options.Json = False,
) -> None:
    """Show whether B is better than A, worse, or within the noise.

    Exit code 0 if B is better or within the noise, 1 if any figure is worse, 2 if single runs are not enough to tell.
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
    if code := {"worse": 1, "cannot tell": 2}.get(comparison.verdict, 0):
        raise typer.Exit(code)


def earlier_runs(output: Path | None, *, append: bool) -> BenchResult | None:
    """Check the output file before the test starts, and read the runs in it that new ones are added to.

    Raises:
        UsageError: the file cannot be written, is not a result, or is missing.
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
    arrivals: options.ArrivalPattern | None,
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
    """Build the plan of a load test from the options.

    Raises:
        UsageError: an option is not valid, or two contradict each other.
        OSError: the trace cannot be read.
    """
    from tsbatch.bench.run import Plan
    from tsbatch.bench.send_times import read_trace

    loops = {"--concurrency": concurrency, "--rate": rate, "--trace": trace, "--steps": steps}
    given = [option for option, value in loops.items() if value is not None]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are different loads; give one of them")
    if arrivals and given not in (["--rate"], ["--steps"]):
        raise UsageError("--arrivals needs --rate or --steps")
    if duration is not None and requests is not None:
        raise UsageError("--duration and --requests exclude each other; give one of them")
    check_positive({"--rate": rate, "--duration": duration, "--timeout": timeout, "--limit": limit})
    check_finite({"--warm-up": warm_up})
    ramp = positive_numbers("--steps", steps, "10,20,40") if steps is not None else []
    clients = [] if arrivals or rate or trace else _clients(ramp) if ramp else [concurrency or options.CLIENTS]
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


def _clients(ramp: list[float]) -> list[int]:
    if not all(number.is_integer() for number in ramp):
        raise UsageError("--steps: numbers of clients must be whole; for requests per second add --arrivals poisson")
    return [int(number) for number in ramp]


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isascii() or not text.isprintable():
        raise UsageError(f"--header is {text!r}; expected 'Name: value'")
    return name.strip(), value.strip()
