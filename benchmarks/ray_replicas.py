#!/usr/bin/env python3
"""Throughput of 1, 2, 4 and 8 replicas on Ray Serve, and what ``tsbatch plan`` says of them.

    python benchmarks/ray_replicas.py                 the table, in about four minutes
    python benchmarks/ray_replicas.py --quick         one minute, to see that it works
    python benchmarks/ray_replicas.py --write         the table into docs/ray.md

The model sleeps, so that replicas do not share the machine's cores: what is measured is whether requests reach them.
A closed loop keeps two full batches at each replica, the most that it takes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from _bench import Case, load_on, request_for
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
"""What a replica reserves: it sleeps."""
LINEAR: Final = 0.9
"""Of so many times the rate of one replica."""


@dataclass(frozen=True, slots=True)
class Run:
    """What so many replicas gave; times in ms, ``planned`` in requests/s."""

    replicas: int
    rate: float
    p50: float
    p99: float
    planned: float


def planned(replicas: int) -> float:
    """The rate that ``tsbatch plan`` reckons with: so many replicas of one worker, each with full batches."""
    settings = Settings(workers=1, batch_size=BATCH, max_batch_delay=DELAY)
    return replicas * capacity(settings, parse(f"{MS}ms"))


def archive(folder: Path) -> Path:
    """The sleeping model."""
    handler = folder / "sleeper.py"
    handler.write_text(HANDLER, encoding="utf-8")
    base = {"handler": {"fixed": MS, "each": 0}}
    config = ModelConfig(workers=1, batch_size=BATCH, max_batch_delay=DELAY, threads=1, base=base)
    return package(name="sleeper", handler=handler, config=config, output_dir=folder)


def run(address: str, replicas: int, seconds: float) -> Run:
    """Put the load on them once."""
    clients = 2 * BATCH * replicas
    fields = {"Host": address, "Content-Type": "application/json"}
    case = Case("numbers", clients, clients, seconds)
    with load_on(address, [request_for(PATH, fields, {"inputs": 1})], case) as load:
        said = load.communicate()[0]
    if load.returncode:
        raise SystemExit("the load failed; its own message is above")
    answer = json.loads(said)
    return Run(replicas, answer["rate"], answer["p50"], answer["p99"], planned(replicas))


def measure(counts: Sequence[int], seconds: float, say: Say) -> dict[str, Any]:
    """All of it, on one Ray."""
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
    """The table."""
    about, first = figures["machine"], figures["runs"][0]
    text = (
        f"{about['cores']} cores ({about['cpu']}); a model that sleeps {figures['ms']} ms a batch of up to"
        f" {figures['batch']}, with as many clients as two full batches at each replica."
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
    head = ["replicas", "requests/s", "of linear", "`plan` says at most", "P50 / P99 ms"]
    return "\n\n".join([text, targets(wanted_of(figures)), table(head, rows)])


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """What issue 8 asks for."""
    first = figures["runs"][0]["rate"]
    return [
        Target(f"{one['replicas']} replicas, of linear", LINEAR, Spread.of([one["rate"] / first / one["replicas"]]))
        for one in figures["runs"][1:]
    ]


def main(words: list[str]) -> int:
    """Measure, print, write; exit code 1 when a target is missed."""
    parser = options("Throughput against replicas on Ray Serve.")
    parser.add_argument("--quick", action="store_true", help="one minute, to see that it works")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    counts, seconds = (REPLICAS[:2], 2.0) if chosen.quick else (REPLICAS, 15.0)
    figures = figures_of(chosen, lambda: measure(counts, seconds, progress()))
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, [] if chosen.quick else wanted_of(figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
