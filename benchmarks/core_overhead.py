"""Measure the overhead of the handler core: a null model with full batches, in process, with TorchServe's Context.

    python benchmarks/core_overhead.py [--batch-size 32] [--rounds 400] [--json]

The handler returns constants; everything else is real: rows as TorchServe's worker builds them from JSON bodies, its
Context and metric cache, tsbatch's metrics.yaml, and metric lines formatted and written to the null device. Timings
are on, headers (X-Request-Start in, Server-Timing out) are off. The main figure is the median over the rounds; the
same with headers on, and the cost of a handler that returns constant bytes, are also printed.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import ts.context
from _tables import finish
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

import tsbatch
from tsbatch.handler import BatchHandler
from tsbatch.protocol.request import Item
from tsbatch.worker.context import ModelContext

GOAL = 25.0
"""Maximum microseconds per request, headers off."""


class Null(BatchHandler):
    """Constants in every stage that a user writes."""

    def load_model(self) -> Any:
        """No model."""
        return torch.nn.Identity()

    def preprocess(self, items: Sequence[Item]) -> list[int]:
        """Return one number per item."""
        return [0] * len(items)

    def collate(self, features: Sequence[Any]) -> list[Any]:
        """Return the features unchanged."""
        return list(features)

    def inference(self, tensors: Any) -> list[int]:
        """Return one number per feature."""
        return [0] * len(tensors)

    def postprocess(self, outputs: Any, items: Sequence[Item]) -> list[dict[str, int]]:
        """Return one constant per item."""
        del outputs
        return [{"answer": 0}] * len(items)


def log_to_null_device() -> None:
    """Configure logging as the worker does (ts/model_service_worker.py), but write to the null device."""
    stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  open until the process exits
    logging.basicConfig(stream=stream, format="%(message)s", level=logging.INFO, force=True)


def make_context(batch_size: int, *, headers: bool) -> Any:
    """Create TorchServe's Context in the state in which its Service passes it to ``handle``."""
    metrics = MetricsCacheYamlImpl(config_file_path=str(Path(tsbatch.__file__).with_name("metrics.yaml")))
    metrics.initialize_cache()
    metrics.model_name = "null"
    context = ts.context.Context("null", ".", {}, batch_size, None, "0.12.0", metrics=metrics)
    context.request_ids = {index: f"0b7ec4a2-6a0b-4e26-9c5e-{index:012d}" for index in range(batch_size)}
    metrics.request_ids = context.request_ids
    properties: dict[str, Any] = {"body": {"content-type": "application/json"}, "host": "x", "accept": "*/*"}
    if headers:
        properties["X-Request-Start"] = f"t={time.time():.6f}"
    context.request_processor = [ts.context.RequestProcessor(dict(properties)) for _ in range(batch_size)]
    return context


def median_cost(handle: Callable[[Any, Any], Any], batch_size: int, rounds: int, *, headers: bool) -> float:
    """Measure microseconds per request: the median over the rounds."""
    rows = [{"body": {"inputs": f"a text of some words, number {index}"}} for index in range(batch_size)]
    context = make_context(batch_size, headers=headers)
    took = []
    for _ in range(rounds):
        context.request_processor = make_processors(context)
        started = time.perf_counter()
        handle([dict(row) for row in rows], context)
        took.append(time.perf_counter() - started)
    return statistics.median(took) / batch_size * 1e6


def make_processors(context: Any) -> list[Any]:
    """Create new request processors, as TorchServe does for every batch."""
    return [ts.context.RequestProcessor(own.get_request_properties()) for own in context.request_processor]


def measure(batch_size: int, rounds: int) -> dict[str, Any]:
    """Measure all figures."""
    figures = {}
    for name, headers in (("headers_off", False), ("headers_on", True)):
        handler = Null()
        config = {"tsbatch": {"telemetry": {"server_timing": headers}}}
        handler.load(ModelContext(model_dir=Path(), batch_size=batch_size, config=config))
        median_cost(handler.handle, batch_size, rounds // 4, headers=headers)  # warm-up
        figures[name] = round(median_cost(handler.handle, batch_size, rounds, headers=headers), 2)
    constant = [b'{"answer":0}'] * batch_size
    figures["constant_handler"] = round(
        median_cost(lambda _rows, _context: constant, batch_size, rounds, headers=False), 2
    )
    return {"schema": 1, "unit": "microseconds a request", "batch_size": batch_size, "rounds": rounds, **figures}


def main() -> int:
    """Measure and print; return exit code 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description="Measure the handler core in process, in microseconds per request.")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    log_to_null_device()
    figures = measure(arguments.batch_size, arguments.rounds)
    met = figures["headers_off"] <= GOAL
    text = (
        f"core, headers off: {figures['headers_off']:6.2f} µs per request (goal {GOAL:g} µs)\n"
        f"core, headers on:  {figures['headers_on']:6.2f} µs per request\n"
        f"constant handler:  {figures['constant_handler']:6.2f} µs per request"
    )
    missed = [] if met else [f"core, headers off: target ≤ {GOAL:g} µs, measured {figures['headers_off']:.2f} µs"]
    return finish(arguments, {**figures, "goal": GOAL, "met": met}, text, missed)


if __name__ == "__main__":
    sys.exit(main())
