"""Simulated load tests with a known effect between them; the acceptance test uses more of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import signal

from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.statistics import percentiles

CLIENTS = 8


def latencies(random, n, factor, persistence=0.9):
    """A run's latencies in ms: log-normal, its neighbours alike, all of them ``factor`` times as long."""
    noise = random.normal(size=n + 200) * np.sqrt(1 - persistence**2)
    return factor * np.exp(3 + 0.4 * signal.lfilter([1], [1, -persistence], noise)[200:])


def run_of(values, *, failed=0, minute=0):
    """A run of a closed loop whose requests took so long; the last ``failed`` of them were refused."""
    n = len(values)
    status = np.full(n, 200.0)
    status[n - failed :] = 503
    seconds = values.sum() / 1000 / CLIENTS
    good = values[: n - failed]
    figures = {name: {"value": value, "low": None, "high": None} for name, value in percentiles(good).items()}
    return Run(
        started=f"2026-01-02T03:{minute:02}:00+00:00",
        step=float(CLIENTS),
        seconds=seconds,
        answered=len(good),
        answered_items=len(good),
        samples=Samples(sent=np.linspace(0, seconds, n), latency=values, status=status),
        summary={
            "requests": n,
            "failed": failed,
            "timed_out": 0,
            "rate": len(good) / seconds,
            "items_rate": len(good) / seconds,
            "goodput": None,
            "latency": figures,
        },
    )


def result_of(runs, **target):
    """A load test of these runs."""
    plan = {"loop": "closed", "arrivals": None, "steps": [CLIENTS], "seconds": 10, "repeat": len(runs), "seed": 0}
    settings = {"batchSize": 8, **target}
    return BenchResult(
        target={"address": "http://x/", "model": "m", "version": "1.0", "settings": settings},
        plan=plan,
        environment={"cpu": "x", "cores": 2},
        runs=runs,
    )


def pair(random, repeats, shift=1.0, *, drift=0.05, n=2000, wander=0.0):
    """Two load tests whose runs took turns; the second's latencies are ``shift`` times those of the first.

    Args:
        random: the source of all of it.
        repeats: runs of each.
        shift: the true effect.
        drift: how much runs of the same thing differ, as a standard deviation of logarithms.
        n: requests in a run.
        wander: how much the machine itself gets faster or slower from one run to the next.
    """
    machine = np.exp(np.cumsum(random.normal(0, wander, 2 * repeats)))
    factors = machine * np.exp(random.normal(0, drift, 2 * repeats))
    runs = [
        run_of(latencies(random, n, factor * (shift if place % 2 else 1.0)), minute=place)
        for place, factor in enumerate(factors)
    ]
    return result_of(runs[::2]), result_of(runs[1::2])


def with_starts(result, first):
    """The same runs, begun at these minutes and after."""
    runs = [replace(run, started=f"2026-01-02T04:{first + place:02}:00+00:00") for place, run in enumerate(result.runs)]
    return replace(result, runs=runs)
