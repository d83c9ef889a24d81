#!/usr/bin/env python3
"""Measure the overhead of a BatchHandler: a null model on a real TorchServe, compared with a minimal custom handler.

    python benchmarks/handler_overhead.py            print the ratio
    python benchmarks/handler_overhead.py --json     print one JSON object on the last line

Both models run on the same server with one worker each and are measured in turn; the figure is the median of the ratios
of neighbouring runs, so that drift of the machine affects both. The exit code is 1 if it is below 0.85.
core_overhead.py measures the overhead of the core without a server.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from _tables import Say, finish, progress

from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.serving.server import Server
from tsbatch.system.signals import end_on_signals

CONNECTIONS = 64
BATCH_SIZE = 32
WARM_UP = 20_000
ENOUGH = 0.85
"""Required ratio to the minimal handler's requests per second."""

OURS = '''
from tsbatch import BatchHandler


class Null(BatchHandler):
    """A model that computes nothing."""

    def load_model(self):
        return None

    def preprocess(self, items):
        return [item.value for item in items]

    def collate(self, features):
        return features

    def inference(self, tensors):
        return ["constant"] * len(tensors)
'''

MINIMAL = '''
from ts.torch_handler.base_handler import BaseHandler


class Minimal(BaseHandler):
    """The smallest handler that TorchServe accepts."""

    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [b'"constant"'] * len(data)
'''
HANDLERS = {"tsbatch": OURS, "minimal": MINIMAL}
BODY = b'{"inputs": "hello"}'


@dataclass(frozen=True)
class Comparison:
    """Requests per second of both handlers, turn by turn."""

    tsbatch: Sequence[float]
    minimal: Sequence[float]
    warm_up: int = WARM_UP

    @property
    def ratios(self) -> list[float]:
        """The ratio of tsbatch's rate to the minimal handler's, turn by turn."""
        return [tsbatch / minimal for tsbatch, minimal in zip(self.tsbatch, self.minimal, strict=True)]

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    def figures(self) -> dict[str, Any]:
        """Convert to one JSON object."""
        return {
            "schema": 1,
            "ratio": round(self.ratio, 3),
            "lowest": round(min(self.ratios), 3),
            "highest": round(max(self.ratios), 3),
            "enough": ENOUGH,
            "turns": len(self.ratios),
            "warm_up": self.warm_up,
            "connections": CONNECTIONS,
            "batch_size": BATCH_SIZE,
            "tsbatch_rate": round(statistics.median(self.tsbatch), 1),
            "minimal_rate": round(statistics.median(self.minimal), 1),
        }


def measure(turns: int, requests: int, warm_up: int, say: Say) -> Comparison:
    """Run both handlers on one server, ``turns`` times each."""
    with tempfile.TemporaryDirectory(prefix="tsbatch-benchmark-") as folder:
        archives = [archive(Path(folder), name, source) for name, source in HANDLERS.items()]
        with (
            end_on_signals(),
            Server.start(models=archives, name=f"benchmark-{os.getpid()}", on_progress=say) as server,
        ):
            say(f"warming up with {warm_up} requests")
            for name in HANDLERS:
                rate(server, name, warm_up // len(HANDLERS))
            rates: dict[str, list[float]] = {name: [] for name in HANDLERS}
            for turn in range(turns):
                # Alternate the order, so that neither always runs on a machine that the other has heated up.
                for name in sorted(HANDLERS, reverse=bool(turn % 2)):
                    rates[name].append(rate(server, name, requests))
                say(f"turn {turn + 1} of {turns}: {rates['tsbatch'][-1]:.0f} and {rates['minimal'][-1]:.0f} requests/s")
    return Comparison(rates["tsbatch"], rates["minimal"], warm_up)


def archive(folder: Path, name: str, source: str) -> Path:
    """Package a handler."""
    handler = folder / f"{name}_handler.py"
    handler.write_text(source, encoding="utf-8")
    config = ModelConfig(workers=1, batch_size=BATCH_SIZE, max_batch_delay=5)
    return package(name=name, handler=handler, config=config, output_dir=folder)


def rate(server: Server, model: str, requests: int) -> float:
    """Measure the requests per second of one run, with a client in a separate process."""
    address = urlsplit(server.inference_address)
    fields = {"Host": address.netloc, "Content-Type": "application/json", **server.headers("inference")}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = f"POST /predictions/{model} HTTP/1.1\r\n{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    command = [sys.executable, str(Path(__file__).with_name("load.py")), str(address.hostname), str(address.port)]
    command += ["--requests", str(requests), "--connections", str(CONNECTIONS)]
    answer = subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True)
    return float(json.loads(answer.stdout)["rate"])


def main(words: list[str]) -> int:
    """Measure and print; return exit code 1 if the ratio is below the required one."""
    parser = argparse.ArgumentParser(description="Measure the overhead of a BatchHandler on a real TorchServe.")
    parser.add_argument("--turns", type=int, default=7, help="turns of both handlers (default 7)")
    parser.add_argument("--requests", type=int, default=10_000, help="requests per run (default 10,000)")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help=f"warm-up requests (default {WARM_UP:,})")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else to standard output")
    chosen = parser.parse_args(words)

    comparison = measure(chosen.turns, chosen.requests, chosen.warm_up, progress())
    figures = comparison.figures()
    text = (
        f"a BatchHandler reaches {comparison.ratio:.2f} of a minimal handler's requests per second"
        f" ({figures['lowest']:.2f} to {figures['highest']:.2f} in {chosen.turns} turns;"
        f" medians {figures['tsbatch_rate']:.0f} and {figures['minimal_rate']:.0f} requests/s)"
    )
    enough = comparison.ratio >= ENOUGH
    missed = [] if enough else [f"ratio: target ≥ {ENOUGH:g}, measured {comparison.ratio:.3f}"]
    return finish(chosen, figures, text, missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
