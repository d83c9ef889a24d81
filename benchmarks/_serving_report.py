"""Render the results of serving.py, from its JSON, as Markdown tables and as a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from _ratios import Spread, ratios
from _systems import ALONE, EIGHT, EXPERT, KINDS, NOTHING_SET, ONE_WORKER, PADDED_32, RECOMMENDED, System
from _tables import Rows, Target, table, targets

BEGIN: Final = "<!-- measured by benchmarks/serving.py -->"


def report(figures: Mapping[str, Any]) -> str:
    """Render all tables."""
    runs: Rows = figures["runs"]
    about = figures["machine"]
    parts = [
        f"{about['cores']} cores ({about['cpu']}), torch {about['torch']}, transformers {about['transformers']}.",
        *_targets(figures),
    ]
    for case in dict.fromkeys((run["corpus"], run["clients"]) for run in runs):
        own = [run for run in runs if (run["corpus"], run["clients"]) == case]
        clients = "1 client" if case[1] == 1 else f"{case[1]} clients"
        parts.append(f"### {case[0].capitalize()} texts, {clients}\n\n{_case(own)}")
    parts += [_in_process(figures["in_process"]), _sweep(figures["sweep"])]
    most = max(run["load_cpu"] for run in runs)
    parts.append(f"The load generator used at most {most:.1%} of a core.")
    return "\n\n".join(parts)


def _system(run: Mapping[str, Any]) -> System:
    return System(**{name: run[name] for name in ("kind", "workers", "threads", "batch", "delay", "engine")})


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
    recommended = rates_of(runs, RECOMMENDED)
    rows = []
    for system in dict.fromkeys(_system(run) for run in runs):
        own = [run for run in runs if run["system"] == system.name]
        rates = [run["rate"] for run in own]
        ratio = "" if system == RECOMMENDED else ratios(recommended, rates).text()
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
    """List the rates of one system, turn by turn."""
    return _values(runs, system, "rate")


def _targets(figures: Mapping[str, Any]) -> list[str]:
    """Render the targets, one section per load."""
    parts = []
    for (corpus, clients), wanted in wanted_of(figures).items():
        load = "1 client" if clients == 1 else f"{clients} clients"
        parts.append(f"### Targets: {corpus} texts, {load}\n\ntsbatch with {RECOMMENDED.settings}\n\n{targets(wanted)}")
        runs = _runs_of(figures, corpus, clients)
        if nothing := rates_of(runs, NOTHING_SET):
            ratio = ratios(nothing, rates_of(runs, ALONE)).text()
            parts.append(f"One by one, two workers with default threads reached {ratio} of one worker.")
    return parts


AT_LEAST: Final = (
    ("× one by one, 2 workers × 1 thread", EXPERT, 1.4),
    ("× one by one, 1 worker, batch 1", ALONE, 2.0),
    ("× one by one, 1 worker, batch 8", EIGHT, 1.7),
    ("× padded to the longest, batch 32", PADDED_32, 4.0),
    ("× one worker of tsbatch", ONE_WORKER, 1.0),
)
"""Required ratios of tsbatch's rate to that of each alternative, with texts of mixed lengths."""


def wanted_of(figures: Mapping[str, Any]) -> dict[tuple[str, int], list[Target]]:
    """List the targets of the acceptance check, by corpus and clients."""
    cases = dict.fromkeys((run["corpus"], run["clients"]) for run in figures["runs"])
    return {case: _wanted(figures, *case) for case in cases}


def _wanted(figures: Mapping[str, Any], corpus: str, clients: int) -> list[Target]:
    runs = _runs_of(figures, corpus, clients)
    recommended = rates_of(runs, RECOMMENDED)
    if clients == 1:
        alone = _values(runs, EXPERT, "p50")
        later = [one - other for one, other in zip(_values(runs, RECOMMENDED, "p50"), alone, strict=True)]
        return [Target("added P50 latency over one by one, ms", RECOMMENDED.delay, Spread.of(later), below=True)]
    if corpus != "mixed":
        # The example truncates every text to 150 tokens, so with long texts it does only part of the work.
        cut = ("tsbatch", "example_style") if corpus == "long" else ("tsbatch",)
        others = {run["system"]: _system(run) for run in runs if run["kind"] not in cut}
        best = max((rates_of(runs, system) for system in others.values()), key=median)
        answers = " that do not truncate the texts" if corpus == "long" else ""
        return [Target(f"× the best of the others{answers}", 0.95, ratios(recommended, best))]
    limit = max((row["rates"] for row in figures["in_process"]), key=median)
    p99 = ratios(_values(runs, RECOMMENDED, "p99"), _values(runs, EXPERT, "p99"))
    example = rates_of(runs, _best(figures, "example_style"))
    return [
        *(Target(what, least, ratios(recommended, rates_of(runs, system))) for what, system, least in AT_LEAST),
        Target("× the example's style, at its best", 3.0, ratios(recommended, example)),
        Target("× the best packed way in process", 0.85, ratios(recommended, limit)),
        Target("P99 × that of one by one, 2 workers × 1 thread", 1.0, p99, below=True),
    ]


def _runs_of(figures: Mapping[str, Any], corpus: str, clients: int) -> Rows:
    return [run for run in figures["runs"] if (run["corpus"], run["clients"]) == (corpus, clients)]


def _values(runs: Rows, system: System, name: str) -> list[float]:
    own = sorted((run for run in runs if run["system"] == system.name), key=lambda run: int(run["turn"]))
    return [run[name] for run in own]


def _best(figures: Mapping[str, Any], kind: str) -> System:
    return next(_system(run) for run in figures["sweep"] if run["system"] == figures["best"][kind])


def draw(figures: Mapping[str, Any], file: Path) -> None:
    """Draw the rates of the mixed corpus at the highest number of clients as horizontal bars with their spread."""
    from matplotlib.figure import Figure

    mixed = [run for run in figures["runs"] if run["corpus"] == "mixed"]
    clients = max(run["clients"] for run in mixed)
    runs = [run for run in mixed if run["clients"] == clients]
    ordered = sorted(dict.fromkeys(_system(run) for run in runs), key=lambda one: median(rates_of(runs, one)))
    spreads = [Spread.of(rates_of(runs, system)) for system in ordered]
    figure = Figure(figsize=(9, 0.45 * len(ordered) + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.barh(
        [f"{KINDS[system.kind]}\n{system.settings}" for system in ordered],
        [spread.median for spread in spreads],
        xerr=[[one.median - one.least for one in spreads], [one.most - one.median for one in spreads]],
        color=["#c2410c" if system.kind == "tsbatch" else "#94a3b8" for system in ordered],
    )
    limit = max(median(row["rates"]) for row in figures["in_process"])
    axes.axvline(limit, color="#334155", linestyle="--", linewidth=1, label="the model alone, packed, in process")
    axes.set_xlabel(f"requests/s, {clients} clients, texts of mixed lengths")
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(loc="lower right", fontsize=7)
    figure.savefig(file)
