"""The figures of one run, and of the repeats of a step."""

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
"""Cores that the load generator may use before it counts as the bottleneck; it has one."""

LATE_MS, LATE_SHARE = 2.0, 0.1
"""How much later than due requests may be sent, at P99: so long, or this share of their median latency."""


def summarize(run: Run, *, limit: float | None, timeout: float) -> dict[str, Any]:
    """The figures of one run; latencies in ms, rates a second.

    Percentiles are over good answers and over requests that ran into the time-out, which count as long as they were
    waited for: leaving them out would make a stalled server look fast. Quick refusals are not in them.

    Args:
        run: its samples, times and counts.
        limit: goodput counts good answers up to that latency in ms; None for no goodput.
        timeout: seconds after which nobody waited any longer.
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
    """Which requests were given up, shape (n,)."""
    out: NDArray[np.bool_] = (samples.status == 0) & (samples.latency >= timeout * 1000 * 0.999)
    return out


def goodput(samples: Samples, limit: float, rate: float) -> dict[str, float]:
    """Good answers in time: the limit in ms, their share of all requests, and how many there were a second.

    Args:
        samples: all requests.
        limit: in ms.
        rate: good answers a second, however late.
    """
    good = int(samples.ok.sum())
    in_time = int((samples.ok & (samples.latency <= limit)).sum())
    return {
        "limit": limit,
        "share": round(in_time / len(samples), 6) if len(samples) else 0.0,
        "rate": round(rate * in_time / good, 4) if good else 0.0,
    }


def parts_of(samples: Samples) -> dict[str, dict[str, float]]:
    """Percentiles of each part of the latency that the server told, in ms.

    ``other`` is what is left of the latency after the waits and the handler time: network, frontend, and this client.
    """
    told = samples.where(samples.ok)
    columns: dict[str, Values] = {name: getattr(told, name) for name in (*WAITS, *STAGES)}
    columns["other"] = told.latency - told.queue - told.assembly - told.handler
    known = {name: values[~np.isnan(values)] for name, values in columns.items()}
    return {
        name: {figure: round(value, 4) for figure, value in percentiles(values).items()}
        for name, values in known.items()
        if len(values)
    }


def batch_of(samples: Samples) -> dict[str, Any] | None:
    """How batches were filled: requests a batch, capacity, and the histogram; None when nobody told."""
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
    """The figures of a step over its repeats.

    With several runs each figure is the mean over them, with the interval in which the mean of many would lie: that
    includes what differs from run to run. With a single one the intervals are those inside it.
    """
    parts = Samples.join([run.samples for run in runs])
    return {
        "step": step,
        "runs": len(runs),
        "requests": len(parts),
        "failed": sum(run.summary["failed"] for run in runs),
        "timed_out": sum(run.summary["timed_out"] for run in runs),
        "rate": rate_of(runs).to_json(),
        "items_rate": mean_of_runs([run.summary["items_rate"] for run in runs]).to_json(),
        "goodput": _goodputs([run.summary["goodput"] for run in runs]),
        "latency": _latencies([run.summary["latency"] for run in runs]),
        "parts": parts_of(parts),
        "batch": batch_of(parts),
        "remarks": remarks_of(runs),
    }


def rate_of(runs: Sequence[Run]) -> Estimate:
    """Good answers a second, typical for the runs; of a single one with the interval inside it."""
    if len(runs) > 1:
        return mean_of_runs([run.summary["rate"] for run in runs])
    (run,) = runs
    good = run.samples.where(run.samples.ok)
    first = run.samples.sent.min() if len(run.samples) else 0.0
    return rate_interval(good.sent - first + good.latency / 1000, run.seconds, run.summary["rate"])


def _goodputs(found: Sequence[Mapping[str, float] | None]) -> dict[str, Any] | None:
    known = [one for one in found if one is not None]
    if not known:
        return None
    return {
        "limit": known[0]["limit"],
        "share": mean_of_runs([one["share"] for one in known]).to_json(),
        "rate": mean_of_runs([one["rate"] for one in known]).to_json(),
    }


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
    """What makes this run's figures worth less than they look: by kind, one sentence each."""
    found = {"busy": _busy(run), "late": _late(run), "waited": _waited(run), "time-out": _time_outs(run)}
    found["short"] = _short(run)
    return {kind: text for kind, text in found.items() if text}


def remarks_of(runs: Sequence[Run]) -> list[str]:
    """The remarks on several runs, each kind once, with the number of runs it is true of."""
    every = [remarks(run) for run in runs]
    counts = Counter(kind for one in every for kind in one)
    texts = {kind: text for one in every for kind, text in one.items()}
    several = len(runs) > 1
    return [texts[kind] + f" (in {count} of {len(runs)} runs)" * several for kind, count in counts.items()]


def _busy(run: Run) -> str | None:
    cpu = run.generator.get("cpu", 0.0)
    if cpu < BUSY:
        return None
    return f"the load generator was the bottleneck: it used {cpu:.2f} of its one core; the server can do more"


def _late(run: Run) -> str | None:
    late = run.generator.get("lateness", {}).get("p99", 0.0)
    median = run.summary["latency"].get("p50", {}).get("value") or 0.0
    if late <= max(LATE_MS, LATE_SHARE * median):
        return None
    return (
        f"the load generator was the bottleneck: at P99 it sent {late:.1f} ms later than due, which the latency holds"
    )


def _waited(run: Run) -> str | None:
    waited = run.generator.get("waited_for_connection", 0)
    if not waited:
        return None
    return f"{waited} requests waited for a free connection: raise --connections to send them when they are due"


def _time_outs(run: Run) -> str | None:
    if not run.summary["timed_out"]:
        return None
    return f"{run.summary['timed_out']} requests ran into the time-out; they count as that long, and would be longer"


def _short(run: Run) -> str | None:
    if run.summary["blocks"] or not run.summary["requests"]:
        return None
    return (
        f"too short for intervals: {run.summary['requests']} requests, of which {run.summary['correlation']:.0f}"
        " in a row tell the same story"
    )
