"""Measure the cost of the load generator of ``tsbatch bench`` with a server that answers immediately.

    python benchmarks/load_generator.py [--seconds 5] [--json]

The server and the generator run in separate processes; the generator has one core. The output shows its requests per
second, the cores it used, and its requests per CPU second: its limit if the server were infinitely fast.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from _tables import finish

from tsbatch.bench.generator_process import generate
from tsbatch.bench.http_client import Address
from tsbatch.bench.load_generator import Load
from tsbatch.bench.request_bodies import JSON, Body
from tsbatch.bench.send_times import Arrivals
from tsbatch.bench.statistics import percentiles

GOAL: Final = 3000.0
"""Minimum requests per second on one core."""

SERVER: Final = Path(__file__).with_name("null_server.py")
CLIENTS: Final = (1, 8, 64)
RATE: Final = 3000.0
WARM_UP: Final = 0.5


@contextmanager
def null_server(*words: str) -> Iterator[str]:
    """Run a null server with these options and yield its URL."""
    command = [sys.executable, str(SERVER), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}/predictions/null"
        finally:
            server.stdin.close()


def measure(url: str, seconds: float) -> list[dict[str, Any]]:
    """Measure closed loops, and an open loop at the goal's rate."""
    bodies = [Body(b'{"inputs": "a sentence"}', JSON)]
    load = Load(address=Address.parse(url), bodies=bodies, warm_up=WARM_UP, seconds=seconds)
    loads = {f"{clients} clients": replace(load, clients=clients) for clients in CLIENTS}
    loads[f"{RATE:g} requests/s"] = replace(load, arrivals=Arrivals("poisson", RATE))
    return [figures(name, one) for name, one in loads.items()]


def figures(name: str, load: Load) -> dict[str, Any]:
    """Measure the cost of one load."""
    outcome = generate(load)
    sent = (len(outcome.samples) + outcome.warm_up["requests"]) / (outcome.seconds + load.warm_up)
    latency = percentiles(outcome.samples.latency)
    return {
        "load": name,
        "rate": round(outcome.answered / outcome.seconds, 1),
        "cores": outcome.generator["cpu"],
        "per_cpu_second": round(sent / outcome.generator["cpu"], 1),
        "p50_ms": round(latency["p50"], 3),
        "p99_ms": round(latency["p99"], 3),
        "late_p99_ms": outcome.generator["lateness"]["p99"],
        "failed": int((~outcome.samples.ok).sum()),
    }


def shortfalls(found: Sequence[dict[str, Any]]) -> list[str]:
    """List what misses the goal."""
    best = max(one["rate"] for one in found)
    slow = [f"{best:.0f} requests/s at most"] if best < GOAL else []
    costly = [one for one in found if one["per_cpu_second"] < GOAL]
    slow += [f"{one['load']}: {one['per_cpu_second']:.0f} requests per CPU second" for one in costly]
    return slow + [f"{one['load']}: {one['failed']} failed" for one in found if one["failed"]]


def main() -> int:
    """Measure and print; return exit code 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description="Measure the load generator with a server that answers immediately.")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    with null_server() as url:
        found = measure(url, chosen.seconds)
    short = shortfalls(found)
    lines = [
        f"{one['load']:>16}: {one['rate']:8.1f} requests/s on {one['cores']:.2f} cores, "
        f"{one['per_cpu_second']:8.1f} per CPU second; P50 {one['p50_ms']:.2f} ms, P99 {one['p99_ms']:.2f} ms"
        for one in found
    ]
    lines.append(f"goal {GOAL:g} requests/s on one core: {'missed' if short else 'met'}")
    result = {"schema": 1, "goal": GOAL, "loads": found, "shortfalls": short}
    return finish(chosen, result, "\n".join(lines), short)


if __name__ == "__main__":
    sys.exit(main())
