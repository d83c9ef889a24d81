"""Print the result of a load test or of a comparison on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tsbatch.bench.comparison import FAILED, Comparison
from tsbatch.bench.request_table import STAGES, WAITS
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.result_tables import (
    Table,
    batch_sizes,
    failures,
    figures,
    interval,
    notes,
    number,
    processes,
    target_name,
)
from tsbatch.system import console

PART_FIGURES: Final = ("mean", "p50", "p90", "p99", "max")


def show(result: BenchResult) -> None:
    """Print all figures of a single step, or one line for each of several steps."""
    console.out.print(headline(result), markup=False, soft_wrap=True)
    if len(result.summary) == 1:
        show_step(result.summary[0], result.runs)
    else:
        show_steps(result.summary)
    _print(failures(result.runs))
    for note in notes(result.summary):
        console.out.print(f"note: {note}", markup=False, soft_wrap=True)


def _print(table: Table | None) -> None:
    if table is not None:
        console.out.print()
        rows = [[number(cell) if isinstance(cell, float) else cell for cell in row] for row in table.rows]
        console.table(table.columns, rows)


def headline(result: BenchResult) -> str:
    """The target and the load in one line."""
    plan, settings = result.plan, result.target["settings"]
    steps = ", ".join(f"{step:g}" for step in plan["steps"])
    if plan["loop"] == "closed":
        how = f"closed loop, {steps} clients"
    else:
        how = "open loop, " + ("a trace" if plan["arrivals"] == "trace" else f"{steps} requests/s ({plan['arrivals']})")
    runs = f", {plan['repeat']} runs" if plan["repeat"] > 1 else ""
    names = {"batchSize": "batchSize", "maxBatchDelay": "maxBatchDelay in ms", "workers": "workers"}
    shown = ", ".join(f"{name} {settings[key]}" for key, name in names.items() if key in settings)
    return f"{target_name(result.target)}: {how}{runs}" + (f"; {shown}" if shown else "")


def show_step(step: Mapping[str, Any], runs: Sequence[Run]) -> None:
    """Print all figures of one step."""
    estimates = [[name, number(one["value"]), interval(one["low"], one["high"]) or ""] for name, one in figures(step)]
    counts = [[name, step[name], ""] for name in ("requests", "failed")]
    console.table(["figure", "value", "95 % interval"], [*estimates, *counts])
    show_parts(step["parts"])
    if batch := step["batch"]:
        console.out.print(f"\nbatches: {batch['mean']:.2f} requests on average, of {batch['capacity']} at most", end="")
        _print(batch_sizes(batch))
    wastes = [run.padding_waste for run in runs if run.padding_waste is not None]
    if wastes:
        console.out.print(f"\npadding waste: {sum(wastes) / len(wastes):.1%}")
    _print(processes(runs[-1:]))
    show_generator(runs)


def show_steps(steps: Sequence[Mapping[str, Any]]) -> None:
    """Print one line for each step."""
    latencies = {"P50 ms": "p50", "P90 ms": "p90", "P99 ms": "p99", "max ms": "max"}
    records = [
        {
            "step": "trace" if step["step"] is None else f"{step['step']:g}",
            "requests/s": number(step["rate"]["value"]),
            "items/s": number(step["items_rate"]["value"]),
            "goodput/s": number(step["goodput"]["rate"]["value"]) if step["goodput"] else None,
            **{name: number(step["latency"].get(key, {}).get("value")) for name, key in latencies.items()},
            "batch": step["batch"]["mean"] if step["batch"] else None,
            "failed": step["failed"],
        }
        for step in steps
    ]
    table = Table.of("", records)
    console.table(table.columns, table.rows)


def show_parts(parts: Mapping[str, Mapping[str, float]]) -> None:
    """Print the parts of the latency, if the server reported any."""
    if set(parts) - {"other"}:
        names = [name for name in (*WAITS, *STAGES, "other") if name in parts]
        rows = [[name, *(parts[name].get(figure) for figure in PART_FIGURES)] for name in names]
        _print(Table(title="", columns=["part, ms", *PART_FIGURES], rows=rows))


def show_generator(runs: Sequence[Run]) -> None:
    """Print the connections and CPU usage of the load generator."""
    total = {key: sum(run.generator.get(key, 0) for run in runs) for key in ("connections", "reconnects", "resent")}
    words = [f"{total['connections']} connections opened", f"{total['reconnects']} replaced"]
    if total["resent"]:
        words.append(f"{total['resent']} resent on another connection")
    busiest = max(run.generator.get("cpu", 0.0) for run in runs)
    console.out.print(f"\nload generator: {busiest:.2f} cores, {', '.join(words)}", soft_wrap=True)


def show_comparison(comparison: Comparison) -> None:
    """Print the change of each figure and the smallest detectable one."""
    console.out.print(verdict_line(comparison), markup=False, soft_wrap=True)
    for setting in comparison.settings:
        console.out.print(f"  {setting}", markup=False)
    several = len({change.step for change in comparison.changes}) > 1
    rows = [
        [
            *([number(change.step)] if several else []),
            change.figure,
            *(f"{one:.2%}" if change.figure == FAILED else number(one) for one in (change.before, change.after)),
            percent(change.ratio),
            interval(change.low, change.high, percent) or "",
            change.verdict,
            "" if change.visible is None else percent(change.visible),
            "" if change.visible is None else change.repeats or "over 1000",
        ]
        for change in comparison.changes
    ]
    columns = ["figure", "A", "B", "change", "interval", "verdict", "visible from", "repeats for 10 %"]
    console.table(["step", *columns] if several else columns, rows)
    for note in comparison.notes:
        console.out.print(f"note: {note}", markup=False, soft_wrap=True)


def verdict_line(comparison: Comparison) -> str:
    """The verdict in one sentence."""
    a, b = comparison.runs
    if comparison.verdict == "cannot tell":
        return (
            f"cannot tell: A has {a} run{'s' * (a > 1)} and B {b}, and repeated runs differ by 10 % or more;"
            " measure both with: tsbatch bench … --repeat 14"
        )
    if comparison.verdict == "within the noise":
        return f"B is within the noise of A ({a} and {b} runs)"
    why = [
        f"{change.figure} {percent(change.ratio)} {change.verdict}"
        for change in comparison.changes
        if change.verdict in ("better", "worse")
    ]
    return f"B is {comparison.verdict} than A ({a} and {b} runs): {', '.join(why)}"


def percent(ratio: float) -> str:
    """Return a ratio as a relative change."""
    return f"{(ratio - 1) * 100:+.1f} %"
