#!/usr/bin/env python3
"""Measure the throughput of 1, 2, 4 and 8 replicas on Ray Serve, and compare it with ``tsbatch plan``.

    python benchmarks/ray_replicas.py                 print the table; takes about four minutes
    python benchmarks/ray_replicas.py --quick         a one-minute check that the benchmark works
    python benchmarks/ray_replicas.py --write         write the table into docs/ray.md

The model sleeps, so that replicas do not compete for the machine's cores: the benchmark measures whether requests reach
them. A closed loop keeps two full batches at each replica, the maximum that it accepts.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from _bench import Case, load_on, outcome_of, request_for
from _ratios import Spread
from _ray import PATH, on_ray
from _tables import Say, Target, deliver, figures_of, machine, options, progress, table, targets
from simulator_accuracy import HANDLER

from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.simulation.batching_rules import Settings
from tsbatch.simulation.planner import capacity
from tsbatch.simulation.service_time import parse

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "ray.md"
BEGIN: Final = "<!-- measured by benchmarks/ray_replicas.py -->"
REPLICAS: Final = (1, 2, 4, 8)
MS: Final = 400
BATCH: Final = 8
DELAY: Final = 5
CORES: Final = "0.1"
"""Cores that a replica reserves; it needs few because it sleeps."""
LINEAR: Final = 0.9
"""Required share of linear scaling from one replica's rate."""


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of a run with ``replicas`` replicas; times in ms, ``planned`` in requests/s."""

    replicas: int
    rate: float
    p50: float
    p99: float
    planned: float


def planned(replicas: int) -> float:
    """Compute the rate that ``tsbatch plan`` assumes: replicas with one worker each and full batches."""
    settings = Settings(workers=1, batch_size=BATCH, max_batch_delay=DELAY)
    return replicas * capacity(settings, parse(f"{MS}ms"))


def archive(folder: Path) -> Path:
    """Package the sleeping model."""
    handler = folder / "sleeper.py"
    handler.write_text(HANDLER, encoding="utf-8")
    base = {"handler": {"fixed": MS, "each": 0}}
    config = ModelConfig(workers=1, batch_size=BATCH, max_batch_delay=DELAY, threads=1, base=base)
    return package(name="sleeper", handler=handler, config=config, output_dir=folder)


def run(address: str, replicas: int, seconds: float) -> Run:
    """Run the load once."""
    clients = 2 * BATCH * replicas
    fields = {"Host": address, "Content-Type": "application/json"}
    case = Case("numbers", clients, clients, seconds)
    with load_on(address, [request_for(PATH, fields, {"inputs": 1})], case) as load:
        answer = outcome_of(load, f"{replicas} replicas")
    return Run(replicas, answer["rate"], answer["p50"], answer["p99"], planned(replicas))


def measure(counts: Sequence[int], seconds: float, say: Say) -> dict[str, Any]:
    """Measure everything on one Ray cluster."""
    runs = []
    with tempfile.TemporaryDirectory(prefix="tsbatch-replicas-") as folder:
        mar = archive(Path(folder))
        common = ("--cpus", CORES, "--queue", "1000")
        with on_ray(mar, *common, "--replicas", str(counts[0])) as deployed:
            for count in counts:
                if count != counts[0]:
                    deployed.deploy(mar, *common, "--replicas", str(count))
                runs.append(run(deployed.address, count, seconds))
                say(f"{count}: {runs[-1].rate:.1f}/s, P99 {runs[-1].p99:.0f} ms, planned {runs[-1].planned:.1f}/s")
    return {"schema": 1, "machine": machine(), "ms": MS, "batch": BATCH, "runs": [asdict(one) for one in runs]}


def report(figures: Mapping[str, Any]) -> str:
    """Render the tables."""
    about, first = figures["machine"], figures["runs"][0]
    text = (
        f"{about['cores']} cores ({about['cpu']}); a model that sleeps {figures['ms']} ms per batch of up to"
        f" {figures['batch']}, with enough clients for two full batches at each replica."
    )
    rows = [
        [
            str(one["replicas"]),
            f"{one['rate']:.1f}",
            f"{one['rate'] / first['rate'] / one['replicas']:.0%}",
            f"{one['planned']:.1f}",
            f"{one['p50']:.0f} / {one['p99']:.0f}",
        ]
        for one in figures["runs"]
    ]
    head = ["replicas", "requests/s", "share of linear scaling", "maximum predicted by `plan`", "P50 / P99 ms"]
    return "\n\n".join([text, targets(wanted_of(figures)), table(head, rows)])


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """List the targets of the acceptance check."""
    first = figures["runs"][0]["rate"]
    return [
        Target(
            f"{one['replicas']} replicas, relative to linear scaling",
            LINEAR,
            Spread.of([one["rate"] / first / one["replicas"]]),
        )
        for one in figures["runs"][1:]
    ]


def main(words: list[str]) -> int:
    """Measure, print, write; return exit code 1 if a target is missed."""
    parser = options("Measure throughput by number of replicas on Ray Serve.")
    parser.add_argument("--quick", action="store_true", help="a one-minute check that the benchmark works")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    counts, seconds = (REPLICAS[:2], 2.0) if chosen.quick else (REPLICAS, 15.0)
    figures = figures_of(chosen, lambda: measure(counts, seconds, progress()))
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, [] if chosen.quick else wanted_of(figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
