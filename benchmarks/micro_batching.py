#!/usr/bin/env python3
"""Evaluate the planner of bucketed passes: against brute force, its duration, and with wrong initial costs.

    python benchmarks/micro_batching.py          print a table
    python benchmarks/micro_batching.py --write  write the table into docs/speed.md

The exit code is 1 if a target of the acceptance check is missed: within 2 % of the best partition, under 1 % of the
forward pass, and at most 1.1 times the padded time after 20 batches even if the cost constant was initially four times
too large or too small.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _corpus import corpora, minilm_tokens
from _ratios import Spread
from _systems import model_dir
from _tables import Target, deliver, figures_of, options, targets

from tsbatch import ModelContext, Request
from tsbatch.batching.cost import PassCost
from tsbatch.batching.planning import Bounds, plan
from tsbatch.handler import BatchHandler
from tsbatch.protocol.reply import ListSink
from tsbatch.tasks.text_embedding import TextEmbeddingHandler

FIXED = 24.0
BATCH = 32
BATCHES = 20
PAGE = Path(__file__).resolve().parents[1] / "docs" / "speed.md"
BEGIN = "<!-- measured by benchmarks/micro_batching.py -->"
SMALL = 8
"""Features in a brute-force batch, which has 4,140 partitions."""


def partitions(things: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield every way to divide ``things`` into groups."""
    if not things:
        yield []
        return
    first, *rest = things
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for index, group in enumerate(smaller):
            yield [*smaller[:index], [first, *group], *smaller[index + 1 :]]


def cost_of(groups: Sequence[Sequence[int]]) -> float:
    """Compute the cost of groups of lengths, each padded to its longest."""
    return sum(FIXED + max(group) * len(group) for group in groups)


def against_brute_force(lengths: Sequence[int], tries: int) -> float:
    """Find the worst ratio of the planner's cost to that of the best partition."""
    numbers = np.random.default_rng(0)
    worst = 1.0
    for _ in range(tries):
        chosen = [int(length) for length in numbers.choice(lengths, SMALL, replace=False)]
        found = plan(chosen, SMALL, bounds=Bounds(SMALL), bucketed=True, cost=PassCost(FIXED))
        planned = cost_of([[chosen[index] for index in group] for group in found])
        worst = max(worst, planned / min(map(cost_of, partitions(chosen))))
    return worst


def planning_seconds(lengths: Sequence[int]) -> float:
    """Measure the median time to plan a batch."""
    times = []
    for start in range(0, len(lengths) - BATCH, BATCH):
        part = lengths[start : start + BATCH]
        started = time.perf_counter()
        plan(part, BATCH, bounds=Bounds(256), bucketed=True, cost=PassCost(FIXED))
        times.append(time.perf_counter() - started)
    return median(times)


def loaded(mode: str) -> BatchHandler:
    """Load the embedding handler with MiniLM in a batching mode."""
    handler = TextEmbeddingHandler()
    batching = {"mode": mode, "deduplicate": False}
    handler.load(ModelContext(model_dir=model_dir(), batch_size=BATCH, config={"tsbatch": {"batching": batching}}))
    return handler


def inference_seconds(handler: BatchHandler, batches: Sequence[Sequence[str]]) -> list[float]:
    """Measure the time in the inference stage of each batch, including planning."""
    seconds = []
    for texts in batches:
        requests = [Request.of({"inputs": text}, index=index) for index, text in enumerate(texts)]
        record = handler.run_batch(requests, ListSink(len(requests)))
        if record.failures:
            raise RuntimeError(f"requests failed: {record.failures}")
        seconds.append(record.stages["inference"])
    return seconds


def measure() -> dict[str, Any]:
    """Measure all figures."""
    count = minilm_tokens(model_dir())
    texts = corpora(1024, count)["mixed"][: BATCH * BATCHES]
    batches = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]
    lengths = count(texts)
    bucketed, padded = loaded("bucketed"), loaded("padded")
    figures: dict[str, Any] = {"schema": 1, "brute_force": against_brute_force(lengths, 50)}
    usual = median(inference_seconds(bucketed, batches[:5]))
    figures["planning_share"] = planning_seconds(lengths) / usual
    start, ratios = bucketed.pass_cost.fixed, {}
    for factor in (0.25, 1.0, 4.0):
        bucketed.pass_cost = PassCost(start * factor)
        pairs = [
            (sum(inference_seconds(bucketed, [batch])), sum(inference_seconds(padded, [batch]))) for batch in batches
        ]
        last = pairs[-5:]
        ratios[str(factor)] = median(own / other for own, other in last)
    return {**figures, "learnt_fixed": start, "against_padded_after_20": ratios}


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """List the targets of the acceptance check."""
    wanted = [
        Target("× the best partition's cost, worst of 50", 1.02, Spread.of([figures["brute_force"]]), below=True),
        Target("planning, share of the forward passes", 0.01, Spread.of([figures["planning_share"]]), below=True),
    ]
    for factor, ratio in figures["against_padded_after_20"].items():
        what = f"× the padded time after {BATCHES} batches, initial cost constant {factor} × the right one"
        wanted.append(Target(what, 1.1, Spread.of([ratio]), below=True))
    return wanted


def main(words: list[str]) -> int:
    """Measure and print; return exit code 1 if a target is missed."""
    chosen = options("Evaluate the planner of bucketed passes.").parse_args(words)
    figures = figures_of(chosen, measure)
    wanted = wanted_of(figures)
    return deliver(chosen, figures, targets(wanted), PAGE, BEGIN, wanted)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
