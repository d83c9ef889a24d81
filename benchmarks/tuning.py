"""Compare the tuner with brute force over a grid and with Optuna's sampler, on simulated servers.

    python benchmarks/tuning.py [--json] [--write] [--repeats 5]

Three models with different cost curves each run under a closed and an open loop. Every setting of the grid (4 workers ×
6 batch sizes × 6 delays) is simulated without noise over many requests; both searches are compared with the best
setting that meets the P99 limit with a margin for noise. Their runs differ by a few per cent, and their budget is a
quarter of the grid's size. The tuner spends it as in real use, including its alternating and confirming runs; the
sampler measures a new setting in each run, and its answer is the best it saw that meets the limits.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from _ratios import Spread
from _simulated_server import CURVES, GRID, SimulatedServer
from _tables import Target, deliver, figures_of, options, progress, table

from tsbatch.tuning.history import History
from tsbatch.tuning.objective import Figures, Goal, Objective, merit
from tsbatch.tuning.ranking import Traffic
from tsbatch.tuning.sampler import Sampler
from tsbatch.tuning.search import CoordinateSearch
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Tuning

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "tune.md"
BEGIN: Final = "<!-- benchmarks/tuning.py -->"
CLOSE: Final = 0.95
"""Required share of the best setting's result."""

START: Final = ModelSettings(workers=1, batch_size=32, delay=100)
BUDGET: Final = len(GRID.combinations()) // 4
NOISE: Final = 0.02
REQUESTS: Final = 20_000
ROOM: Final = 1.5
"""The P99 limit as a multiple of the lowest P99 in the grid."""


@dataclass(frozen=True)
class Case:
    """One model under one load."""

    curve: str
    traffic: Traffic
    objective: Objective

    def server(self, seed: int) -> SimulatedServer:
        """Create a simulated server for this case."""
        return SimulatedServer(CURVES[self.curve], self.traffic, noise=NOISE, seed=seed)

    @property
    def load(self) -> str:
        """The load and the objective in words."""
        return f"{self.traffic}, {self.objective}"


CASES: Final = [
    case
    for curve, rate in zip(CURVES, (120.0, 150.0, 200.0), strict=True)
    for case in (
        Case(curve, Traffic(clients=20), "throughput"),
        Case(curve, Traffic(rate=rate), "p99"),
        Case(curve, Traffic(rate=rate), "memory"),
    )
]


def brute_force(case: Case) -> tuple[Goal, dict[ModelSettings, Figures]]:
    """Compute the true figures of every setting in the grid, and a goal that some of them meet."""
    server = case.server(0)
    truth = {settings: server.truth(settings, REQUESTS) for settings in GRID.combinations()}
    healthy = [figures.p99 for figures in truth.values() if figures.failed == 0]
    return Goal(objective=case.objective, p99=ROOM * min(healthy)), truth


def best_of(goal: Goal, truth: Mapping[ModelSettings, Figures]) -> ModelSettings:
    """Find the best setting that meets the limits in nearly every run, with a margin of two standard deviations."""
    sure = replace(goal, p99=(goal.p99 or 0.0) / math.exp(2 * NOISE))
    feasible = [settings for settings, figures in truth.items() if not sure.broken(figures)]
    return max(feasible, key=lambda settings: merit(truth[settings], goal.objective))


def careful(case: Case, goal: Goal, seed: int) -> tuple[ModelSettings | None, int]:
    """Run the tuner; return its recommendation and the number of runs."""
    server = case.server(seed)
    search = CoordinateSearch(goal, GRID, case.traffic)
    outcome = Tuning(system=server, search=search, goal=goal, start=START, budget=BUDGET).run()
    return outcome.recommended, server.runs


def sampler(case: Case, goal: Goal, seed: int) -> tuple[ModelSettings | None, int]:
    """Run Optuna's sampler, measuring each setting once; return the best setting and the number of runs."""
    server, history = case.server(seed), History()
    search = Sampler(goal, GRID, seed)
    history.start.append(server.measure(START))
    history.runs.append(history.start[0])
    while len(history.runs) < BUDGET and (proposed := search.propose(history)):
        history.runs.append(server.measure(proposed.settings))
    kept = [run for run in history.runs if not goal.broken(run.figures)]
    best = max(kept, key=lambda run: merit(run.figures, goal.objective), default=None)
    return None if best is None else best.settings, server.runs


def share(goal: Goal, best: Figures, found: Figures | None) -> float:
    """Compute the share of the best result that was reached: 0 if no setting or one that breaks a limit was found.

    A share above 1 is possible for a setting that meets the limit without the margin that the best setting has.
    """
    if found is None or goal.broken(found):
        return 0.0
    one, other = found.of(goal.objective), best.of(goal.objective)
    return one / other if goal.objective == "throughput" else other / one


def measure(repeats: int) -> dict[str, Any]:
    """Measure all cases."""
    say, rows = progress(), []
    for case in CASES:
        goal, truth = brute_force(case)
        best = best_of(goal, truth)
        row: dict[str, Any] = {"curve": case.curve, "load": case.load, "p99": goal.p99, "best": str(best)}
        row["best_value"] = truth[best].of(goal.objective)
        for name, search in (("careful", careful), ("sampler", sampler)):
            found = [search(case, goal, seed) for seed in range(1, repeats + 1)]
            shares = [share(goal, truth[best], None if settings is None else truth[settings]) for settings, _ in found]
            row[name] = {
                "shares": shares,
                "runs": [runs for _, runs in found],
                "found": [str(settings) for settings, _ in found],
            }
            row[name]["broke"] = sum(
                settings is not None and bool(goal.broken(truth[settings])) for settings, _ in found
            )
        say(f"{case.curve}, {case.load}: {row['careful']['shares']} {row['sampler']['shares']}")
        rows.append(row)
    return {"grid": len(GRID.combinations()), "budget": BUDGET, "noise": NOISE, "cases": rows}


def text_of(figures: Mapping[str, Any]) -> str:
    """Render the table."""
    head = ["model", "load and objective", "best of the grid", "tuner", "its runs", "Optuna's TPE", "its runs"]
    rows = [
        [row["curve"], row["load"], row["best"], *_cells(row["careful"]), *_cells(row["sampler"])]
        for row in figures["cases"]
    ]
    return table(head, rows)


def _cells(found: Mapping[str, Any]) -> list[str]:
    worst, middle = min(found["shares"]), sorted(found["shares"])[len(found["shares"]) // 2]
    broke = f", {found['broke']} broke a limit" if found["broke"] else ""
    runs = found["runs"]
    count = str(runs[0]) if min(runs) == max(runs) else f"{min(runs)} to {max(runs)}"
    return [f"{100 * middle:.0f} % (worst {100 * worst:.0f} %){broke}", count]


def targets_of(figures: Mapping[str, Any]) -> list[Target]:
    """List the targets."""
    shares = [share for row in figures["cases"] for share in row["careful"]["shares"]]
    runs = [count for row in figures["cases"] for count in row["careful"]["runs"]]
    broke = sum(row["careful"]["broke"] for row in figures["cases"])
    return [
        Target("worst share of the best that the tuner reached", CLOSE, _exactly(min(shares))),
        Target("runs", figures["grid"] / 4, _exactly(max(runs)), below=True),
        Target("recommendations that break a limit", 0.5, _exactly(broke), below=True),
    ]


def _exactly(value: float) -> Spread:
    return Spread.of([value])


def main(words: Sequence[str]) -> int:
    """Measure, print, and write the table into the docs if requested; return exit code 1 if a target is missed."""
    parser: argparse.ArgumentParser = options(__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="tunings per case, with different noise (default 5)")
    chosen = parser.parse_args(words)
    figures = figures_of(chosen, lambda: measure(chosen.repeats))
    return deliver(chosen, figures, text_of(figures), PAGE, BEGIN, targets_of(figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
