"""A load test's result for people: what it was, its figures with their intervals, and what makes them worth less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tsbatch.bench.comparison import FAILED, Change, Comparison
from tsbatch.bench.request_table import STAGES, WAITS
from tsbatch.bench.resource_monitor import on_gpus
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.system import console

MEGABYTE: Final = 10**6
FIGURES: Final = ("mean", "p50", "p90", "p95", "p99", "p99.9", "max")
OF_PARTS: Final = ("mean", "p50", "p90", "p99", "max")


def show(result: BenchResult) -> None:
    """Print everything; of several steps one line each."""
    console.out.print(headline(result), markup=False, soft_wrap=True)
    if len(result.summary) == 1:
        show_step(result.summary[0], result.runs)
    else:
        show_steps(result.summary)
    show_errors(result.runs)
    for step in result.summary:
        for remark in step["remarks"]:
            where = f"{step['step']:g}: " if len(result.summary) > 1 else ""
            console.out.print(f"note: {where}{remark}", markup=False, soft_wrap=True)


def headline(result: BenchResult) -> str:
    """What was loaded, and how."""
    target, plan = result.target, result.plan
    model = f"{target['model']} {target['version'] or ''}".strip() if target["model"] else target["address"]
    steps = ", ".join(f"{step:g}" for step in plan["steps"])
    if plan["loop"] == "closed":
        how = f"closed loop, {steps} clients"
    else:
        how = "open loop, " + ("a trace" if plan["arrivals"] == "trace" else f"{steps} requests/s ({plan['arrivals']})")
    runs = f", {plan['repeat']} runs" if plan["repeat"] > 1 else ""
    names = {"batchSize": "batchSize", "maxBatchDelay": "maxBatchDelay in ms", "workers": "workers"}
    holds = ", ".join(f"{text} {target['settings'][key]}" for key, text in names.items() if key in target["settings"])
    return f"{model}: {how}{runs}" + (f"; {holds}" if holds else "")


def show_step(step: Mapping[str, Any], runs: Sequence[Run]) -> None:
    """One step: all its figures."""
    rows = [["requests/s", *with_interval(step["rate"])]]
    if step["items_rate"] != step["rate"]:
        rows.append(["items/s", *with_interval(step["items_rate"])])
    if step["goodput"]:
        good = step["goodput"]
        share = good["share"]["value"] if isinstance(good["share"], dict) else good["share"]
        rows.append([f"goodput/s (<= {good['limit']:g} ms: {share:.2%})", *with_interval(good["rate"])])
    rows += [[f"{name} ms", *with_interval(step["latency"][name])] for name in FIGURES if name in step["latency"]]
    rows.append(["requests", step["requests"], ""])
    rows.append(["failed", step["failed"], ""])
    console.table(["figure", "value", "95 % interval"], rows)
    show_parts(step["parts"])
    show_batches(step["batch"])
    wastes = [run.padding_waste for run in runs if run.padding_waste is not None]
    if wastes:
        console.out.print(f"\npadding waste: {sum(wastes) / len(wastes):.1%}")
    show_workers(runs[-1])
    show_generator(runs)


def show_steps(steps: Sequence[Mapping[str, Any]]) -> None:
    """Several steps: a line each."""
    rows = [
        [
            "trace" if step["step"] is None else f"{step['step']:g}",
            number(step["rate"]["value"]),
            number(step["items_rate"]["value"]),
            number(step["goodput"]["rate"]["value"]) if step["goodput"] else None,
            *(number(step["latency"].get(name, {}).get("value")) for name in ("p50", "p90", "p99", "max")),
            step["batch"]["mean"] if step["batch"] else None,
            step["failed"],
        ]
        for step in steps
    ]
    columns = ["step", "requests/s", "items/s", "goodput/s", "P50 ms", "P90 ms", "P99 ms", "max ms", "batch", "failed"]
    console.table(columns, rows)


def show_parts(parts: Mapping[str, Mapping[str, float]]) -> None:
    """Where the latency went."""
    if not set(parts) - {"other"}:
        return
    rows = [
        [name, *(number(parts[name].get(figure)) for figure in OF_PARTS)]
        for name in (*WAITS, *STAGES, "other")
        if name in parts
    ]
    console.out.print()
    console.table(["part, ms", *OF_PARTS], rows)


def show_batches(batch: Mapping[str, Any] | None) -> None:
    """How full the batches were."""
    if not batch:
        return
    console.out.print(f"\nbatches: {batch['mean']:.2f} requests on average, of {batch['capacity']} at most")
    total = sum(size["batches"] for size in batch["sizes"])
    rows = [
        [size["size"], size["requests"], f"{size['batches']:.0f}", f"{size['batches'] / total:.1%}"]
        for size in batch["sizes"]
    ]
    console.table(["size", "requests", "batches", "share"], rows)


def show_workers(run: Run) -> None:
    """What the server's processes used in a run."""
    if not run.workers:
        return
    rows = [
        [
            one["name"],
            one["pid"],
            f"{one['cpu']:.2f}",
            f"{one['memory_rss'] / MEGABYTE:.0f}",
            None if one["memory_private"] is None else f"{one['memory_private'] / MEGABYTE:.0f}",
        ]
        for one in run.workers
    ]
    columns = ["process", "pid", "cores", "memory MB", "private MB"]
    if held := on_gpus(run.workers):
        columns.append("GPU MB")
        rows = [[*row, f"{memory / MEGABYTE:.0f}"] for row, memory in zip(rows, held, strict=True)]
    console.out.print()
    console.table(columns, rows)


def show_generator(runs: Sequence[Run]) -> None:
    """What the load generator did and cost."""
    total = {key: sum(run.generator.get(key, 0) for run in runs) for key in ("connections", "reconnects", "resent")}
    words = [f"{total['connections']} connections opened", f"{total['reconnects']} replaced"]
    if total["resent"]:
        words.append(f"{total['resent']} sent again on another connection")
    busiest = max(run.generator.get("cpu", 0.0) for run in runs)
    console.out.print(f"\nload generator: {busiest:.2f} cores, {', '.join(words)}", soft_wrap=True)


def show_errors(runs: Sequence[Run]) -> None:
    """Failures by status and reason, over all runs."""
    counts: dict[tuple[int, str], int] = {}
    for run in runs:
        for error in run.errors:
            kind = (error["status"], error["reason"])
            counts[kind] = counts.get(kind, 0) + error["count"]
    if counts:
        console.out.print()
        rows = [[status or "none", reason, count] for (status, reason), count in counts.items()]
        console.table(["status", "reason", "count"], rows)


def with_interval(figure: Mapping[str, float | None]) -> tuple[str | None, str]:
    """A figure and its interval, as two cells."""
    low, high = figure["low"], figure["high"]
    return number(figure["value"]), "" if low is None or high is None else f"{number(low)} to {number(high)}"


def number(value: float | None) -> str | None:
    """A number with as many digits as mean something."""
    if value is None:
        return None
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def show_comparison(comparison: Comparison) -> None:
    """Print what became of each figure, and what could have been seen."""
    console.out.print(verdict_of(comparison), markup=False, soft_wrap=True)
    for setting in comparison.settings:
        console.out.print(f"  {setting}", markup=False)
    several = len({change.step for change in comparison.changes}) > 1
    rows = [
        [
            *([number(change.step)] if several else []),
            change.figure,
            _shown(change, change.before),
            _shown(change, change.after),
            percent(change.ratio),
            "" if change.low is None or change.high is None else f"{percent(change.low)} to {percent(change.high)}",
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


def verdict_of(comparison: Comparison) -> str:
    """The verdict in a sentence."""
    a, b = comparison.runs
    if comparison.verdict == "cannot tell":
        return (
            f"cannot tell: A has {a} run{'s' * (a > 1)} and B {b}, and runs of the same thing differ by 10 % and more;"
            " repeat both with: tsbatch bench … --repeat 14"
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
    """A ratio as a change."""
    return f"{(ratio - 1) * 100:+.1f} %"


def _shown(change: Change, value: float) -> str | None:
    return f"{value:.2%}" if change.figure == FAILED else number(value)
