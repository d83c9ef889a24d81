"""What serving.py has measured, as Markdown tables and as a chart. Everything is made from its JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from _ratios import Spread, ratios
from _systems import ALONE, EIGHT, EXPERT, KINDS, NOTHING_SET, ONE_WORKER, PADDED_32, RECOMMENDED, System

Rows = Sequence[Mapping[str, Any]]


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    import torch
    import transformers

    from tsbatch.resources import usable_cores

    return {
        "cpu": _cpu_name(),
        "cores": usable_cores(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _cpu_name() -> str:
    """As Linux tells it, with the vector instructions that decide the speed of a matrix product."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.replace("\t", "").split(":", 1) for line in text.splitlines() if ":" in line)
    vector = next((name for name in ("amx_tile", "avx512f", "avx2") if name in facts.get("flags", "")), "no AVX2")
    return f"{facts.get('model name', platform.machine()).strip()}, {vector}"


BEGIN: Final = "<!-- measured by benchmarks/serving.py -->"
END: Final = "<!-- end -->"


def into(page: str, text: str, begin: str = BEGIN) -> str:
    """The page with ``text`` in place of what stood between ``begin`` and :data:`END`.

    Raises:
        SystemExit: the page has no such lines.
    """
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise SystemExit(f"the page has no lines {begin} and {END}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def report(figures: Mapping[str, Any]) -> str:
    """All tables."""
    runs: Rows = figures["runs"]
    about = figures["machine"]
    parts = [
        f"{about['cores']} cores ({about['cpu']}), torch {about['torch']}, transformers {about['transformers']}.",
        *_must_show(figures),
    ]
    for case in dict.fromkeys((run["corpus"], run["clients"]) for run in runs):
        own = [run for run in runs if (run["corpus"], run["clients"]) == case]
        clients = "1 client" if case[1] == 1 else f"{case[1]} clients"
        parts.append(f"### {case[0].capitalize()} texts, {clients}\n\n{_case(own)}")
    parts += [_in_process(figures["in_process"]), _sweep(figures["sweep"])]
    most = max(run["load_cpu"] for run in runs)
    parts.append(f"The load generator used at most {most:.1%} of a core.")
    return "\n\n".join(parts)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _system(run: Mapping[str, Any]) -> System:
    return System(**{name: run[name] for name in ("kind", "workers", "threads", "batch", "delay")})


def _sweep(runs: Rows) -> str:
    rows = [[KINDS[run["kind"]], _system(run).settings, f"{run['rate']:.1f}", f"{run['p99']:.0f}"] for run in runs]
    return "### The sweep\n\n" + table(["handler", "settings", "requests/s", "P99 ms"], rows)


def _in_process(rows: Rows) -> str:
    cells = [
        [f"packed, batch {row['batch']}", f"{row['processes']} × {row['threads']}", _spread(row["rates"])]
        for row in rows
    ]
    return "### The model alone, in process\n\n" + table(["how", "processes × threads", "texts/s"], cells)


def _spread(rates: Sequence[float]) -> str:
    return Spread.of(rates).text(1)


def _case(runs: Rows) -> str:
    ours = rates_of(runs, RECOMMENDED)
    rows = []
    for system in dict.fromkeys(_system(run) for run in runs):
        own = [run for run in runs if run["system"] == system.name]
        rates = [run["rate"] for run in own]
        ratio = "" if system == RECOMMENDED else ratios(ours, rates).text()
        latency = f"{median(run['p50'] for run in own):.0f} / {median(run['p99'] for run in own):.0f}"
        cpu = f"{median(run['workers_ms'] for run in own):.1f} + {median(run['frontend_ms'] for run in own):.1f}"
        rows.append([KINDS[system.kind], system.settings, _spread(rates), latency, cpu, ratio])
    head = [
        "handler",
        "settings",
        "requests/s",
        "P50 / P99 ms",
        "CPU ms a request, workers + Java",
        "tsbatch is × as fast",
    ]
    return table(head, rows)


def rates_of(runs: Rows, system: System) -> list[float]:
    """The rates of one system, turn by turn."""
    return [run["rate"] for run in sorted(runs, key=lambda run: run["turn"]) if run["system"] == system.name]


def _must_show(figures: Mapping[str, Any]) -> Iterator[str]:
    """The ratios that issue 3 asks for, for each load that has them."""
    mixed = [run for run in figures["runs"] if run["corpus"] == "mixed" and run["clients"] > 1]
    for clients in dict.fromkeys(run["clients"] for run in mixed):
        runs = [run for run in mixed if run["clients"] == clients]
        ours = rates_of(runs, RECOMMENDED)
        rows = [
            [what, f"{least:.2f}", ratios(ours, rates_of(runs, system)).text()]
            for what, system, least in (
                ("one by one, 2 workers × 1 thread", EXPERT, 1.4),
                ("one by one, 1 worker, batch 1", ALONE, 2.0),
                ("one by one, 1 worker, batch 8", EIGHT, 1.7),
                ("padded to the longest, batch 32", PADDED_32, 4.0),
                ("one worker of tsbatch", ONE_WORKER, 1.0),
            )
        ]
        example = _best(figures, "example_style")
        rows.append(["the example's style, at its best", "3.00", ratios(ours, rates_of(runs, example)).text()])
        limit = max((row["rates"] for row in figures["in_process"]), key=median)
        rows.append(["the best packed way in process", "0.85", ratios(ours, limit).text()])
        nothing = ratios(rates_of(runs, NOTHING_SET), rates_of(runs, ALONE)).text()
        yield (
            f"### How many times as fast as the others: mixed texts, {clients} clients\n\ntsbatch with"
            f" {RECOMMENDED.settings}\n\n"
            + table(["against", "wanted", "measured"], rows)
            + f"\n\nOne by one, two workers with default threads reached {nothing} of one worker."
        )


def _best(figures: Mapping[str, Any], kind: str) -> System:
    return next(_system(run) for run in figures["sweep"] if run["system"] == figures["best"][kind])


def draw(figures: Mapping[str, Any], file: Path) -> None:
    """The rates of the mixed corpus at the most clients, as horizontal bars with their spread."""
    from matplotlib.figure import Figure

    mixed = [run for run in figures["runs"] if run["corpus"] == "mixed"]
    clients = max(run["clients"] for run in mixed)
    runs = [run for run in mixed if run["clients"] == clients]
    who = sorted(dict.fromkeys(_system(run) for run in runs), key=lambda one: median(rates_of(runs, one)))
    spreads = [Spread.of(rates_of(runs, system)) for system in who]
    figure = Figure(figsize=(9, 0.45 * len(who) + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.barh(
        [f"{KINDS[system.kind]}\n{system.settings}" for system in who],
        [spread.median for spread in spreads],
        xerr=[[one.median - one.least for one in spreads], [one.most - one.median for one in spreads]],
        color=["#c2410c" if system.kind == "tsbatch" else "#94a3b8" for system in who],
    )
    limit = max(median(row["rates"]) for row in figures["in_process"])
    axes.axvline(limit, color="#334155", linestyle="--", linewidth=1, label="the model alone, packed, in process")
    axes.set_xlabel(f"requests/s, {clients} clients, texts of mixed lengths")
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(loc="lower right", fontsize=7)
    figure.savefig(file)
