#!/usr/bin/env python3
"""Measure how many requests per second ``tsbatch simulate`` simulates on one core.

    python benchmarks/simulate.py            print a table
    python benchmarks/simulate.py --write    write the table into docs/simulate.md

Each row simulates a million requests. The time excludes drawing the arrivals and includes building the table of
requests. The fastest of three runs counts, because the others were disturbed. The exit code is 1 below the goal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from _ratios import Spread
from _tables import Target, deliver, figures_of, machine, options, table

from tsbatch.bench.send_times import Arrivals
from tsbatch.simulation.batching_rules import Overhead, Settings
from tsbatch.simulation.planner import capacity
from tsbatch.simulation.service_time import ServiceTime, parse
from tsbatch.simulation.simulator import simulate
from tsbatch.simulation.workload import Clients, take

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "simulate.md"
BEGIN: Final = "<!-- measured by benchmarks/simulate.py -->"
GOAL: Final = 300_000.0
"""Required requests per second, the target of the acceptance check."""

REQUESTS: Final = 1_000_000
TURNS: Final = 3
HEADS: Final = ("simulated", "requests per second")
SERVICE: Final = parse("5+2*n", variation=0.2, overhead=Overhead(frontend=1.0, batch=1.0, request=0.1))
CASES: Final[Mapping[str, tuple[Settings, float]]] = {
    "batches of 1, 1 worker, load 0.8": (Settings(), 0.8),
    "up to 8 after 10 ms, 2 workers, load 0.5": (Settings(workers=2, batch_size=8, max_batch_delay=10), 0.5),
    "up to 8 after 10 ms, 4 workers, load 0.9": (Settings(workers=4, batch_size=8, max_batch_delay=10), 0.9),
    "up to 32 after 50 ms, 4 workers, load 0.9": (Settings(workers=4, batch_size=32, max_batch_delay=50), 0.9),
    "up to 8 after 10 ms, 2 workers, load 1.5": (Settings(workers=2, batch_size=8, max_batch_delay=10), 1.5),
}
CLOSED: Final = "up to 8 after 10 ms, 2 workers, 16 clients"


def rate(settings: Settings, arrivals: Any, service: ServiceTime) -> float:
    """Measure simulated requests per second."""
    rates = []
    for turn in range(TURNS):
        started = time.perf_counter()
        simulated = simulate(settings, arrivals, service, seed=turn)
        rates.append(len(simulated.samples) / (time.perf_counter() - started))
    return max(rates)


def measure() -> dict[str, Any]:
    """Measure every case."""
    rates = {
        name: rate(settings, take(Arrivals("poisson", load * capacity(settings, SERVICE)), REQUESTS), SERVICE)
        for name, (settings, load) in CASES.items()
    }
    settings = Settings(workers=2, batch_size=8, max_batch_delay=10)
    rates[CLOSED] = rate(settings, Clients(16, REQUESTS), SERVICE)
    return {"machine": machine(), "requests_per_second": {name: round(value) for name, value in rates.items()}}


def report(figures: Mapping[str, Any]) -> str:
    """Render the table."""
    rows = [[name, f"{value:,}"] for name, value in figures["requests_per_second"].items()]
    return table(HEADS, rows) + f"\n\nOne core of: {figures['machine']['cpu']}."


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """List the target of each case."""
    return [Target(name, GOAL, Spread.of([float(value)])) for name, value in figures["requests_per_second"].items()]


def main(words: Sequence[str] | None = None) -> int:
    """Measure and report; return exit code 1 if a target is missed."""
    chosen = options("Measure the speed of the simulator.").parse_args(words)
    figures = figures_of(chosen, measure)
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, wanted_of(figures))


if __name__ == "__main__":
    sys.exit(main())
