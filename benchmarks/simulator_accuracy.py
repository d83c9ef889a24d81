#!/usr/bin/env python3
"""Compare the simulator with a real TorchServe whose model sleeps, with the same arrivals, for many settings.

    python benchmarks/simulator_accuracy.py --save FILE           measure; resumes an interrupted run
    python benchmarks/simulator_accuracy.py --from FILE --write   write the table into docs/simulate.md

The service time is measured as a user would measure it: with a load test in steps of one worker that has the cell's
batchSize and a delay of 20 ms, once before the cell and once after it, because the machine's speed varies. In between,
the cell's arrivals are sent to the server, and the simulator gets the same ones. P50 and P99 cover successful answers;
batch sizes are compared by their Wasserstein distance (the average difference in requests under the best matching of
the two distributions). The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from _ratios import Spread
from _tables import Say, Target, deliver, machine, options, progress, table, targets

from tsbatch.archive.model_config import ModelConfig
from tsbatch.bench.generator_process import generate
from tsbatch.bench.load_generator import Load
from tsbatch.bench.request_bodies import JSON, Body
from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_file import BenchResult
from tsbatch.bench.run import Plan, bench
from tsbatch.bench.send_times import Arrivals, Kind
from tsbatch.bench.target import find_target
from tsbatch.packaging.builder import package
from tsbatch.serving.server import Server
from tsbatch.simulation.batching_rules import Settings
from tsbatch.simulation.fitting import of_bench
from tsbatch.simulation.planner import capacity
from tsbatch.simulation.service_time import ServiceTime
from tsbatch.simulation.simulator import simulate
from tsbatch.simulation.workload import take

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "simulate.md"
BEGIN: Final = "<!-- measured by benchmarks/simulator_accuracy.py -->"

HANDLER: Final = '''
import time

from tsbatch import BatchHandler


class Sleeper(BatchHandler):
    """Sleeps for a fixed time per batch plus a time per item, as its settings specify."""

    def load_model(self):
        return None

    def preprocess(self, items):
        return [item.value for item in items]

    def collate(self, features):
        return features

    def inference(self, tensors):
        time.sleep((self.options["fixed"] + self.options["each"] * len(tensors)) / 1000)
        return tensors
'''
REQUESTS: Final = 5_000
SHARE, MS = 0.1, 5.0
"""P50 and P99 agree within this share or this many ms."""

CELLS_WANTED: Final = 0.9
THROUGHPUT: Final = 0.05
DISTANCE: Final = 0.05
"""Wasserstein distance of the batch sizes, as a share of batchSize."""

CLIENTS: Final = (1, 3, 8, 16)
LAST_STEP, MIN_LAST_STEP = 2.5, 3
"""The last step has this many clients per batchSize, and at least so many: full batches whose requests had to wait."""

CALIBRATION_SECONDS: Final = 4.0
CALIBRATION_DELAY: Final = 20
BODY: Final = Body(b'{"inputs": 1}', JSON)


@dataclass(frozen=True, slots=True)
class Cell:
    """Settings and a load.

    Attributes:
        workers, batch_size, delay: the model's settings.
        fixed, each: ms that the model sleeps per batch and per item.
        load: the share of the workers' capacity.
        arrivals: the arrival process.
    """

    workers: int
    batch_size: int
    delay: int
    fixed: int
    each: int
    load: float
    arrivals: Kind = "poisson"

    @property
    def settings(self) -> Settings:
        """The settings in the simulator's format."""
        return Settings(workers=self.workers, batch_size=self.batch_size, max_batch_delay=self.delay)


CELLS: Final = (
    Cell(1, 1, 100, 2, 2, 0.5),
    Cell(1, 1, 100, 2, 2, 0.8),
    Cell(1, 4, 200, 5, 2, 0.3),
    Cell(1, 4, 1, 5, 2, 0.6),
    Cell(1, 8, 10, 20, 2, 0.7),
    Cell(1, 8, 50, 20, 2, 0.7),
    Cell(1, 8, 20, 20, 2, 0.5, "bursts"),
    Cell(1, 16, 20, 20, 2, 0.6),
    Cell(1, 32, 100, 40, 1, 0.5),
    Cell(1, 32, 5, 40, 1, 0.8),
    Cell(1, 16, 1, 20, 2, 1.3),
    Cell(2, 1, 100, 5, 2, 0.7),
    Cell(2, 4, 10, 20, 2, 0.6),
    Cell(2, 8, 50, 20, 2, 0.4),
    Cell(2, 8, 1, 20, 2, 0.8),
    Cell(2, 8, 10, 20, 2, 0.4, "bursts"),
    Cell(2, 16, 200, 60, 3, 0.5),
    Cell(2, 4, 5, 20, 2, 1.2, "bursts"),
    Cell(3, 8, 20, 40, 1, 0.7),
    Cell(4, 1, 1, 20, 2, 0.8),
    Cell(4, 4, 5, 40, 1, 0.6),
    Cell(4, 8, 20, 60, 3, 0.8),
    Cell(4, 8, 50, 60, 3, 0.4, "bursts"),
    Cell(4, 32, 100, 200, 3, 0.6),
)


class Sleepers:
    """A server whose models sleep."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self._handler = folder / "sleeper.py"
        self._handler.write_text(HANDLER, encoding="utf-8")

    @contextlib.contextmanager
    def model(self, cell: Cell, kind: str = "sleeper") -> Iterator[str]:
        """Register a model with a cell's settings, wait until it is READY, and unregister it after the block."""
        name = f"{kind}-{cell.workers}-{cell.batch_size}-{cell.delay}-{cell.fixed}-{cell.each}"
        config = ModelConfig(
            workers=cell.workers,
            batch_size=cell.batch_size,
            max_batch_delay=cell.delay,
            base={"handler": {"fixed": cell.fixed, "each": cell.each}},
        )
        archive = package(name=name, handler=self._handler, config=config, output_dir=self.folder, force=True)
        with self.server.management() as management:
            management.register(archive.as_uri(), model_name=name)
            try:
                management.wait_ready(name, timeout=120)
                yield name
            finally:
                management.unregister(name)

    def warm_up(self, seconds: float) -> None:
        """Send a load until Java has compiled its hot code."""
        with self.model(Cell(1, 8, 1, 0, 0, 1.0)) as name:
            self.load(name, seconds=seconds, clients=16)

    def load(self, name: str, **how: Any) -> Samples:
        """Send a load and return its requests."""
        target = find_target(name, instance=self.server.instance.name)
        return generate(Load(address=target.address, tokens=target.tokens, bodies=[BODY], **how)).samples

    def run(self, cell: Cell) -> tuple[Samples, ServiceTime]:
        """Send a cell's requests to the real server; fit the service time to load tests before and after."""
        alone = replace(cell, workers=1, delay=CALIBRATION_DELAY)
        with self.model(alone, "calibration") as calibration, self.model(cell) as name:
            before = self.calibrate(calibration, cell.batch_size)
            rate = cell.load * capacity(cell.settings, of_bench(before))
            times = take(Arrivals(cell.arrivals, rate, seed=7), REQUESTS)
            self.load(name, seconds=1.0, clients=cell.workers * cell.batch_size)
            samples = self.load(name, arrivals=Arrivals("trace", times=times.tolist()))
            after = self.calibrate(calibration, cell.batch_size)
        both = replace(before, runs=[*before.runs, *after.runs])
        return samples, of_bench(both, f"{cell.fixed} + {cell.each} n ms")

    def calibrate(self, name: str, batch_size: int) -> BenchResult:
        """Run a load test in steps, as ``tsbatch bench --steps`` does."""
        highest = max(MIN_LAST_STEP, int(LAST_STEP * batch_size))
        steps = [*(clients for clients in CLIENTS if clients < highest), highest]
        target = find_target(name, instance=self.server.instance.name)
        return bench(target, [BODY], Plan(clients=steps, seconds=CALIBRATION_SECONDS, warm_up=1.0))


@dataclass(frozen=True, slots=True)
class Figures:
    """Real or simulated figures: ms, requests per second, shares, and the share of batches of each size from 1."""

    p50: float
    p99: float
    rate: float
    refused: float
    sizes: Sequence[float]

    @classmethod
    def of(cls, samples: Samples, batch_size: int) -> Figures:
        """Compute the figures from the requests."""
        good = samples.where(samples.ok)
        end = float((good.sent + good.latency / 1000).max())
        batches = np.bincount(good.batch.astype(int), minlength=batch_size + 1)[1:] / np.arange(1, batch_size + 1)
        return cls(
            p50=float(np.quantile(good.latency, 0.5)),
            p99=float(np.quantile(good.latency, 0.99)),
            rate=len(good) / (end - float(samples.sent.min())),
            refused=1 - len(good) / len(samples),
            sizes=(batches / batches.sum()).tolist(),
        )


def compare(cell: Cell, samples: Samples, service: ServiceTime) -> dict[str, Any]:
    """Compute the real and the simulated figures of a cell, and the distance of their batch sizes."""
    sent = np.sort(samples.sent)
    simulated = simulate(cell.settings, sent - sent[0], service.with_workers(cell.workers), seed=1)
    real, predicted = (Figures.of(one, cell.batch_size) for one in (samples, simulated.samples))
    distance = np.abs(np.cumsum(real.sizes) - np.cumsum(predicted.sizes)).sum()
    return {
        "cell": asdict(cell),
        "requests": len(samples),
        "no_answer": int((samples.status == 0).sum()),
        "overhead": asdict(service.overhead),
        "offered": round((len(sent) - 1) / float(sent[-1] - sent[0]), 2),
        "real": asdict(real),
        "simulated": asdict(predicted),
        "distance": round(float(distance), 4),
        "total_variation": round(float(np.abs(np.array(real.sizes) - np.array(predicted.sizes)).sum() / 2), 4),
    }


def agrees(row: Mapping[str, Any], name: str) -> bool:
    """Check whether the real and the simulated latency agree."""
    real, simulated = row["real"][name], row["simulated"][name]
    return bool(abs(simulated - real) <= max(SHARE * real, MS))


def measure(cells: Sequence[Cell], say: Say, file: Path | None) -> dict[str, Any]:
    """Measure every cell that ``file`` does not contain yet, and write the file after each.

    Rows without an overhead come from an earlier method and are measured again.
    """
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else {}
    rows: list[dict[str, Any]] = [row for row in known.get("cells", []) if "overhead" in row]
    done = [row["cell"] for row in rows]
    remaining = [cell for cell in cells if asdict(cell) not in done]
    with (
        tempfile.TemporaryDirectory(prefix="tsbatch-simulator-") as folder,
        Server.start(name=f"simulator-{time.time_ns()}") as server,
    ):
        sleepers = Sleepers(server, Path(folder))
        sleepers.warm_up(10)
        for number, cell in enumerate(remaining, 1):
            say(f"cell {number} of {len(remaining)}: {cell}")
            rows.append(compare(cell, *sleepers.run(cell)))
            known = {"machine": machine(), "cells": rows}
            if file:
                file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known


HEADS: Final = (
    "workers", "batchSize", "delay", "ms a batch", "arrivals", "load", "P50", "simulated", "P99", "simulated",
    "requests/s", "simulated", "refused", "simulated", "mean batch", "simulated", "distance", "",
)  # fmt: skip


def report(figures: Mapping[str, Any]) -> str:
    """Render the table of cells and the targets."""
    rows = [cells_of(row) for row in figures["cells"]]
    overhead = [row["overhead"] for row in figures["cells"]]
    parts = ", ".join(f"{name} {Spread.of([one[name] for one in overhead]).text()}" for name in overhead[0])
    return "\n\n".join(
        [
            table(HEADS, rows),
            f"TorchServe's overhead, estimated from the load tests, in ms: {parts}.",
            f"Measured on {figures['machine']['cores']} cores of: {figures['machine']['cpu']}.",
            targets(wanted_of(figures)),
        ]
    )


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """Render a cell as a row of the table; simulated latencies that do not agree are bold."""
    cell, real, simulated = row["cell"], row["real"], row["simulated"]
    pairs = [cell_pair(row, name) for name in ("p50", "p99")]
    missed = not all(agrees(row, name) for name in ("p50", "p99"))
    means = [float(np.dot(side["sizes"], np.arange(1, len(side["sizes"]) + 1))) for side in (real, simulated)]
    return [
        *(str(cell[name]) for name in ("workers", "batch_size", "delay")),
        f"{cell['fixed']} + {cell['each']} n",
        cell["arrivals"],
        f"{cell['load']:g}",
        *(text for pair in pairs for text in pair),
        *(f"{side['rate']:.1f}" for side in (real, simulated)),
        *(f"{side['refused']:.1%}" for side in (real, simulated)),
        *(f"{mean:.2f}" for mean in means),
        f"{row['distance']:.2f}",
        "missed" if missed else "",
    ]


def cell_pair(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Render a real and a simulated latency."""
    simulated = f"{row['simulated'][name]:.1f}"
    return f"{row['real'][name]:.1f}", simulated if agrees(row, name) else f"**{simulated}**"


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """List the targets of the acceptance check."""
    rows = figures["cells"]
    close = [float(agrees(row, "p50") and agrees(row, "p99")) for row in rows]
    rates = [abs(row["simulated"]["rate"] / row["real"]["rate"] - 1) for row in rows]
    distances = [row["distance"] / row["cell"]["batch_size"] for row in rows]
    return [
        Target(
            "share of cells whose P50 and P99 agree",
            CELLS_WANTED,
            Spread.of([float(np.mean(close))]),
        ),
        Target("throughput, worst difference", THROUGHPUT, Spread.of([max(rates)]), below=True),
        Target("batch sizes, worst distance over batchSize", DISTANCE, Spread.of([max(distances)]), below=True),
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Measure and report; return exit code 1 if a target is missed."""
    parser = options("Compare the simulator with a real TorchServe.")
    parser.add_argument("--only", metavar="FROM-TO", help="measure only these cells, numbered from 1")
    chosen = parser.parse_args(words)
    figures = figures_for(chosen)
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, wanted_of(figures))


def figures_for(chosen: argparse.Namespace) -> dict[str, Any]:
    """Measure the cells, or read the figures from the ``--from`` file."""
    if chosen.source:
        return dict(json.loads(chosen.source.read_text(encoding="utf-8")))
    first, _, last = (chosen.only or f"1-{len(CELLS)}").partition("-")
    return measure(CELLS[int(first) - 1 : int(last or first)], progress(), chosen.save)


if __name__ == "__main__":
    sys.exit(main())
