"""Results of load tests with known figures, made without a server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tsbatch.bench.request_table import STAGES, Samples
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.summary import combine, summarize

SECONDS = 20.0


def make_samples(count, *, step=8, seed=0, told=True, failing=0.01):
    """So many requests over 20 s, with queue waits that grow with the step; ``told``: with their split."""
    random = np.random.default_rng(seed)
    split, total = {}, random.uniform(20, 40, count)
    if told:
        batch = random.integers(1, 9, count).astype(float)
        stages = dict(zip(STAGES, random.uniform(0.1, 1, (len(STAGES), count)), strict=True))
        stages["inference"] = 20 + 2 * batch
        split = {"queue": random.exponential(3 * step, count), "assembly": random.uniform(0, 10, count)}
        split["handler"] = sum(stages.values()) + 0.3
        total = sum(split.values()) + random.uniform(0.5, 2, count)
        split |= stages | {"batch": batch, "capacity": np.full(count, 8.0), "worker": random.integers(0, 2, count)}
    status = np.where(random.uniform(size=count) < failing, 503.0, 200.0)
    sent = 1.7e9 + np.sort(random.uniform(0, SECONDS, count))
    return Samples(sent=sent, latency=total, status=status, items=np.ones(count), **split)


def make_run(step=8, turn=0, count=400, *, told=True, failing=0.01, reason="busy"):
    """One run of them."""
    samples = make_samples(count, step=step, seed=turn, told=told, failing=failing)
    answered = int(samples.ok.sum())
    errors = [{"status": 503, "reason": reason, "count": count - answered}] if answered < count else []
    worker = {"name": "worker 9000", "pid": 12, "cpu": 0.97, "memory_rss": 512_000_000, "memory_private": 200_000_000}
    run = Run(
        started="2026-01-02T03:04:05+00:00",
        step=step,
        seconds=SECONDS,
        answered=answered,
        answered_items=answered,
        samples=samples,
        errors=errors,
        workers=[worker, {**worker, "name": "server", "memory_private": None}] if told else [],
        generator={"cpu": 0.2, "lateness": {"p99": 0.1}},
        padding_waste=0.12 if told else None,
    )
    return replace(run, summary=summarize(run, limit=100, timeout=30))


def make_result(*, steps=(8,), repeat=1, model="embed", **how):
    """A whole result."""
    settings = {"batchSize": 8, "maxBatchDelay": 10, "minWorkers": 2, "maxWorkers": 2, "workers": 2}
    result = BenchResult(
        target={
            "address": f"http://127.0.0.1:8080/predictions/{model}",
            "model": model,
            "version": "1.0",
            "settings": settings,
        },
        plan={"loop": "closed", "arrivals": None, "steps": list(steps), "repeat": repeat, "timeout": 30.0},
        environment={"tsbatch": "0.1.0", "cpu": "a processor", "cores": 2, "memory": 25_000_000_000},
        runs=[make_run(step, turn, **how) for turn in range(repeat) for step in steps],
    )
    return replace(result, summary=[combine(step, runs) for step, runs in result.steps().items()])
