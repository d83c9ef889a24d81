#!/usr/bin/env python3
"""What a BatchHandler costs: a null model on a real TorchServe, against a minimal handler written by hand.

    python benchmarks/handler_overhead.py            a table
    python benchmarks/handler_overhead.py --json     one JSON object on the last line

Both models run on the same server, one worker each, and take turns; the figure is the median of the ratios of
neighbouring runs, so that drift of the machine hits both. Exit code 1 when it is below 0.85. What the core costs
without a server is measured by core_overhead.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.serving.server import Server
from tsbatch.system.signals import end_on_signals

CONNECTIONS = 64
BATCH_SIZE = 32
WARM_UP = 20_000
ENOUGH = 0.85
"""Of the minimal handler's requests per second."""

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
    """The least that TorchServe accepts."""

    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        return [b'"constant"'] * len(data)
'''
HANDLERS = {"tsbatch": OURS, "minimal": MINIMAL}
BODY = b'{"inputs": "hello"}'

Say = Callable[[str], None]


@dataclass(frozen=True)
class Comparison:
    """Requests per second of both handlers, turn by turn."""

    tsbatch: Sequence[float]
    minimal: Sequence[float]
    warm_up: int = WARM_UP

    @property
    def ratios(self) -> list[float]:
        """What tsbatch reached of the minimal handler's rate, turn by turn."""
        return [ours / theirs for ours, theirs in zip(self.tsbatch, self.minimal, strict=True)]

    @property
    def ratio(self) -> float:
        """The median ratio."""
        return statistics.median(self.ratios)

    def figures(self) -> dict[str, Any]:
        """Everything as one JSON object."""
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
                # Who goes first changes, so that neither always inherits the other's heat.
                for name in sorted(HANDLERS, reverse=bool(turn % 2)):
                    rates[name].append(rate(server, name, requests))
                say(f"turn {turn + 1} of {turns}: {rates['tsbatch'][-1]:.0f} and {rates['minimal'][-1]:.0f} requests/s")
    return Comparison(rates["tsbatch"], rates["minimal"], warm_up)


def archive(folder: Path, name: str, source: str) -> Path:
    """A handler's archive."""
    handler = folder / f"{name}_handler.py"
    handler.write_text(source, encoding="utf-8")
    config = ModelConfig(workers=1, batch_size=BATCH_SIZE, max_batch_delay=5)
    return package(name=name, handler=handler, config=config, output_dir=folder)


def rate(server: Server, model: str, requests: int) -> float:
    """Requests per second of one run, by a client in a process of its own."""
    address = urlsplit(server.inference_address)
    fields = {"Host": address.netloc, "Content-Type": "application/json", **server.headers("inference")}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    request = f"POST /predictions/{model} HTTP/1.1\r\n{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    command = [sys.executable, str(Path(__file__).with_name("load.py")), str(address.hostname), str(address.port)]
    command += ["--requests", str(requests), "--connections", str(CONNECTIONS)]
    answer = subprocess.run(command, input=request, stdout=subprocess.PIPE, check=True)
    return float(json.loads(answer.stdout)["rate"])


def main(words: list[str]) -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description="What a BatchHandler costs on a real TorchServe.")
    parser.add_argument("--turns", type=int, default=7, help="alternations (default 7)")
    parser.add_argument("--requests", type=int, default=10_000, help="requests of each run (default 10,000)")
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help=f"requests before that (default {WARM_UP:,})")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output, nothing else")
    chosen = parser.parse_args(words)

    def say(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    comparison = measure(chosen.turns, chosen.requests, chosen.warm_up, say)
    figures = comparison.figures()
    if chosen.json:
        print(json.dumps(figures))
    else:
        print(
            f"a BatchHandler reaches {comparison.ratio:.2f} of a minimal handler's requests per second"
            f" ({figures['lowest']:.2f} to {figures['highest']:.2f} in {chosen.turns} turns;"
            f" medians {figures['tsbatch_rate']:.0f} and {figures['minimal_rate']:.0f} requests/s)"
        )
    return 0 if comparison.ratio >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
