"""Summarize one run, and the repeats of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tsbatch.bench.request_table import STAGES, WAITS, Samples
from tsbatch.bench.result_file import Run
from tsbatch.bench.statistics import (
    Estimate,
    Values,
    batch_histogram,
    distribution,
    latency_histogram,
    mean_of_runs,
    percentiles,
    rate_interval,
)

BUSY: Final = 0.85
"""Cores from which on the load generator, which has one, counts as the bottleneck."""

LATE_MS, LATE_SHARE = 2.0, 0.1
"""Tolerated lateness of requests at P99, in ms or as a share of the median latency, whichever is larger."""


def summarize(run: Run, *, limit: float | None, timeout: float) -> dict[str, Any]:
    """Return the figures of one run; latencies in ms, rates per second.

    Percentiles cover good answers and requests that timed out, which count with the time waited: without them a stalled
    server would look fast. Quick rejections are excluded.

    Args:
        run: its samples, times and counts.
        limit: latency limit of the goodput in ms; None for no goodput.
        timeout: seconds after which clients gave up.
    """
    samples = run.samples
    counted = samples.where(samples.ok | timed_out(samples, timeout))
    latency = distribution(counted.latency)
    return {
        "requests": len(samples),
        "failed": int(len(samples) - samples.ok.sum()),
        "timed_out": int(timed_out(samples, timeout).sum()),
        "rate": round(run.answered / run.seconds, 4),
        "items_rate": round(run.answered_items / run.seconds, 4),
        "goodput": None if limit is None else goodput(samples, limit, run.answered / run.seconds),
        "latency": {name: figure.to_json() for name, figure in latency.figures.items()},
        "correlation": round(latency.correlation, 2),
        "blocks": latency.blocks,
        "parts": parts_of(samples),
        "batch": batch_of(samples),
        "histogram": latency_histogram(counted.latency),
    }


def timed_out(samples: Samples, timeout: float) -> NDArray[np.bool_]:
    """Return a mask of the requests that timed out, shape (n,)."""
    out: NDArray[np.bool_] = (samples.status == 0) & (samples.latency >= timeout * 1000 * 0.999)
    return out


def goodput(samples: Samples, limit: float, rate: float) -> dict[str, float]:
    """Return the latency limit in ms, the share of requests answered within it, and their number per second.

    Args:
        samples: all requests.
        limit: in ms.
        rate: all good answers per second.
    """
    good = int(samples.ok.sum())
    in_time = int((samples.ok & (samples.latency <= limit)).sum())
    return {
        "limit": limit,
        "share": round(in_time / len(samples), 6) if len(samples) else 0.0,
        "rate": round(rate * in_time / good, 4) if good else 0.0,
    }


def parts_of(samples: Samples) -> dict[str, dict[str, float]]:
    """Return percentiles of each part of the latency that the server reported, in ms.

    ``other`` is the rest of the latency after the waits and the handler time: network, frontend, and this client.
    """
    good = samples.where(samples.ok)
    columns: dict[str, Values] = {name: getattr(good, name) for name in (*WAITS, *STAGES)}
    columns["other"] = good.latency - good.queue - good.assembly - good.handler
    figures = {name: percentiles(values[~np.isnan(values)]) for name, values in columns.items()}
    return {name: {key: round(value, 4) for key, value in one.items()} for name, one in figures.items() if one}


def batch_of(samples: Samples) -> dict[str, Any] | None:
    """Return mean batch size, capacity and histogram of the batches; None if unknown."""
    histogram = batch_histogram(samples.batch)
    if not histogram:
        return None
    capacity = samples.capacity[~np.isnan(samples.capacity)]
    requests, batches = (sum(size[what] for size in histogram) for what in ("requests", "batches"))
    return {
        "mean": round(requests / batches, 3),
        "capacity": int(capacity.max()) if len(capacity) else None,
        "sizes": histogram,
    }


def combine(step: float | None, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the figures of a step over its repeats.

    With several runs each figure is their mean, with the interval of the mean, which covers the variation between runs.
    With a single run the intervals are those within it.
    """
    samples = Samples.join([run.samples for run in runs])
    goodputs = [run.summary["goodput"] for run in runs if run.summary["goodput"] is not None]
    return {
        "step": step,
        "runs": len(runs),
        "requests": len(samples),
        "failed": sum(run.summary["failed"] for run in runs),
        "timed_out": sum(run.summary["timed_out"] for run in runs),
        "rate": rate_of(runs).to_json(),
        "items_rate": mean_of_runs([run.summary["items_rate"] for run in runs]).to_json(),
        "goodput": {
            "limit": goodputs[0]["limit"],
            **{key: mean_of_runs([one[key] for one in goodputs]).to_json() for key in ("share", "rate")},
        }
        if goodputs
        else None,
        "latency": _latencies([run.summary["latency"] for run in runs]),
        "parts": parts_of(samples),
        "batch": batch_of(samples),
        "remarks": remarks_of(runs),
    }


def rate_of(runs: Sequence[Run]) -> Estimate:
    """Return the mean rate of good answers; of a single run with the interval within it."""
    if len(runs) > 1:
        return mean_of_runs([run.summary["rate"] for run in runs])
    (run,) = runs
    good = run.samples.where(run.samples.ok)
    first = run.samples.sent.min() if len(run.samples) else 0.0
    return rate_interval(good.sent - first + good.latency / 1000, run.seconds, run.summary["rate"])


def _latencies(found: Sequence[Mapping[str, Mapping[str, float | None]]]) -> dict[str, Any]:
    if len(found) == 1:
        return dict(found[0])
    common = [name for name in found[0] if all(name in one for one in found)]
    values = {name: [one[name]["value"] for one in found] for name in common}
    means = {name: mean_of_runs([value for value in one if value is not None]) for name, one in values.items()}
    # The highest of several runs is no mean.
    if "max" in values:
        means["max"] = Estimate(max(value for value in values["max"] if value is not None))
    return {name: mean.to_json() for name, mean in means.items()}


def remarks(run: Run) -> dict[str, str]:
    """Return the limitations of this run's figures: one sentence by kind."""
    generator, summary, found = run.generator, run.summary, {}
    bottleneck = "the load generator was the bottleneck"
    if (cpu := generator.get("cpu", 0.0)) >= BUSY:
        found["busy"] = f"{bottleneck}: it used {cpu:.2f} of its one core; the server can do more"
    late, median = generator.get("lateness", {}).get("p99", 0.0), summary["latency"].get("p50", {}).get("value") or 0.0
    if late > max(LATE_MS, LATE_SHARE * median):
        found["late"] = f"{bottleneck}: at P99 it sent requests {late:.1f} ms late, which the latency includes"
    if waited := generator.get("waited_for_connection", 0):
        found["waited"] = f"{waited} requests waited for a free connection: raise --connections to send them on time"
    if count := summary["timed_out"]:
        found["time-out"] = f"{count} requests timed out; they count with the timeout, their real latency is higher"
    if not summary["blocks"] and summary["requests"]:
        found["short"] = f"run too short for confidence intervals: {summary['requests']} requests"
        if summary["correlation"] >= 2:
            found["short"] += f", strongly autocorrelated (about {summary['correlation']:.0f} per independent sample)"
    return found


def remarks_of(runs: Sequence[Run]) -> list[str]:
    """Return the remarks on several runs, each kind once, with the number of runs it applies to."""
    texts = [(kind, text) for run in runs for kind, text in remarks(run).items()]
    counts, last = Counter(kind for kind, _ in texts), dict(texts)
    several = len(runs) > 1
    return [last[kind] + f" (in {count} of {len(runs)} runs)" * several for kind, count in counts.items()]
