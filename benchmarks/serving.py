#!/usr/bin/env python3
"""Measure the benefit of dynamic batching: four handlers on one TorchServe under the same load, in turn.

    python benchmarks/serving.py                        print tables; at most 20 minutes on two cores
    python benchmarks/serving.py --quick                check in one or two minutes that it works; figures unreliable
    python benchmarks/serving.py --full                 a larger sweep, all corpora, 1, 8, 32 and 64 clients
    python benchmarks/serving.py --write                write the tables and the chart into docs/speed.md
    python benchmarks/serving.py --save serving.json --chart serving.png

First, a sweep finds the best workers, threads and batch size of each handler. Then these best settings and common
settings are measured in turn, together with the model alone in process. All return all-MiniLM-L6-v2 embeddings of the
same English texts as JSON from the same encoder; deduplication is off. Ratios are computed within each turn.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import _tables
from _bench import Bench, Case, Run
from _corpus import LENGTHS, corpora, minilm_tokens
from _ratios import turn
from _serving_report import BEGIN, draw, report, wanted_of
from _systems import (
    ALONE,
    EAGER,
    EIGHT,
    EXPERT,
    KINDS,
    NOTHING_SET,
    ONE_WORKER,
    PADDED_32,
    RECOMMENDED,
    Kind,
    Size,
    System,
    model_dir,
    sweep,
)
from in_process import Way, Workers, packed_ways

from tsbatch.worker.resources import usable_cores

COUNT: Final = 512
PICTURE: Final = "![Requests per second of tsbatch and of three other handlers](serving.svg)"
PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "speed.md"


@dataclass(frozen=True)
class Plan:
    """The size of the benchmark.

    Attributes:
        turns: turns of all systems.
        swept: the load of the sweep.
        mixed: the loads for every system of :func:`systems`.
        others: the loads for the best system of each kind.
        sweep: the size of the sweep.
        limit_seconds: minimum duration of each run in process.
    """

    turns: int
    swept: Case
    mixed: Sequence[Case]
    others: Sequence[Case]
    sweep: Size = "small"
    limit_seconds: float = 4.0


DEFAULT: Final = Plan(
    turns=3,
    swept=Case("mixed", 64, 256, 2.0),
    mixed=(Case("mixed", 32, 256, 5.0), Case("mixed", 64, 256, 5.0)),
    others=(Case("mixed", 1, 64, 3.0), Case("short", 32, 256, 3.0), Case("long", 32, 64, 3.0)),
)
QUICK: Final = Plan(
    turns=1,
    swept=Case("mixed", 16, 32, 0.0),
    mixed=(Case("mixed", 16, 32, 0.0),),
    others=(Case("short", 16, 32, 0.0),),
    sweep="one",
    limit_seconds=0.5,
)
FULL: Final = Plan(
    turns=5,
    swept=Case("mixed", 64, 256, 4.0),
    mixed=tuple(Case("mixed", clients, 256, 10.0) for clients in (8, 32, 64)),
    others=tuple(Case(name, clients, 64, 5.0) for name in LENGTHS for clients in (1, 8, 32, 64)),
    sweep="large",
    limit_seconds=10.0,
)


@dataclass
class Results:
    """All measurements.

    Attributes:
        swept: the sweep's runs.
        best: the best settings of each kind.
        runs: the runs of the turns.
        limits: texts per second in process, by way, turn by turn.
    """

    swept: list[Run] = field(default_factory=list)
    best: dict[Kind, System] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    limits: dict[Way, list[float]] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Convert to one JSON object."""
        return {
            "schema": 1,
            "machine": _tables.machine(),
            "best": {kind: system.name for kind, system in self.best.items()},
            "sweep": [run.figures() for run in self.swept],
            "runs": [run.figures() for run in self.runs],
            "in_process": [{**asdict(way), "rates": rates} for way, rates in self.limits.items()],
        }


def find_best(bench: Bench, plan: Plan, results: Results, kinds: Sequence[Kind]) -> None:
    """Run each setting of the sweep once, and keep the fastest of each kind."""
    for kind in kinds:
        runs = []
        for system in sweep(kind, usable_cores(), plan.sweep):
            bench.start(system)
            runs.append(bench.run(system, plan.swept, 0))
            bench.end(system)
        results.swept += runs
        results.best[kind] = max(runs, key=lambda run: run.rate).system


def systems(best: dict[Kind, System]) -> list[System]:
    """List the systems for the turns: tsbatch as recommended, the best of the others, and common settings."""
    fixed = [RECOMMENDED, EAGER, ONE_WORKER, EXPERT, ALONE, EIGHT, NOTHING_SET, PADDED_32]
    return list(dict.fromkeys([*fixed, *(system for kind, system in best.items() if kind != "tsbatch")]))


def take_turns(bench: Bench, plan: Plan, results: Results, say: Callable[[str], None]) -> None:
    """Run all systems under every load, and the model in process, turn by turn."""
    every = systems(results.best)
    few = list(
        dict.fromkeys([RECOMMENDED, EAGER, EXPERT, *(results.best[kind] for kind in results.best if kind != "tsbatch")])
    )
    for system in every:
        bench.start(system)
    ways = packed_ways(usable_cores())
    results.limits = {way: [] for way in ways}
    with Workers(ways) as workers:
        for number in range(plan.turns):
            for way in turn(ways, number):
                results.limits[way].append(workers.rate(way, plan.limit_seconds))
                say(f"turn {number + 1}: {way}: {results.limits[way][-1]:.1f} texts/s")
            for case, some in [*((case, every) for case in plan.mixed), *((case, few) for case in plan.others)]:
                results.runs += [bench.run(system, case, number) for system in turn(some, number)]


def measure(plan: Plan, kinds: Sequence[Kind], say: Callable[[str], None]) -> Results:
    """Measure everything."""
    results = Results()
    texts = corpora(COUNT, minilm_tokens(model_dir()))
    with tempfile.TemporaryDirectory(prefix="tsbatch-serving-") as folder, Bench(Path(folder), texts, say) as bench:
        find_best(bench, plan, results, kinds)
        take_turns(bench, plan, results, say)
    return results


def main(words: list[str]) -> int:
    """Measure, print, write; return exit code 1 if a target is missed."""
    parser = _tables.options("Compare tsbatch with three other handlers on one TorchServe.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a check of one or two minutes that it works")
    size.add_argument("--full", action="store_true", help="the whole grid; takes hours")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the rates into a .svg or .png file")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    plan = QUICK if chosen.quick else FULL if chosen.full else DEFAULT
    figures = _tables.figures_of(chosen, lambda: measure(plan, list(KINDS), _tables.progress()).figures())
    chart = chosen.chart or (PAGE.with_name("serving.svg") if chosen.write else None)
    if chart:
        draw(figures, chart)
    wanted = [] if chosen.quick else [one for case in wanted_of(figures).values() for one in case]
    return _tables.deliver(chosen, figures, f"{PICTURE}\n\n{report(figures)}", PAGE, BEGIN, wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
