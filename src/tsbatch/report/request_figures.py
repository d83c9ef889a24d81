"""Charts of the requests: latency distribution, batch sizes, padding waste, and figures over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tsbatch.bench.request_table import Column, Samples
from tsbatch.bench.result_tables import batch_sizes as batch_size_table
from tsbatch.bench.result_tables import number
from tsbatch.bench.statistics import latency_histogram, percentiles
from tsbatch.bench.summary import batch_of
from tsbatch.report.charts import histogram, line_figure, stacked_figure
from tsbatch.report.document import Figure, Part, Words

WINDOWS: Final = 60
MIN_IN_WINDOW: Final = 20
"""Mean number of requests that a time window should have at least."""

POINTED: Final = {"P50": "p50", "P99": "p99", "max": "max"}


def distribution(counted: Samples) -> Figure | Words:
    """The latency distribution of the requests that count."""
    title = "Latency distribution"
    found = latency_histogram(counted.latency[~np.isnan(counted.latency)])
    edges, counts = found["edges"], found["counts"]
    if not counts:
        return Words(title=title, lines=["No request was answered, so there is no latency."])
    figures = percentiles(counted.latency)
    marks = {name: figures[key] for name, key in POINTED.items() if key in figures}
    note = ", ".join(f"{name} {number(value)} ms" for name, value in marks.items())
    return Figure(
        title=title,
        note=f"{note}. The axis is logarithmic: each column spans the same factor.",
        chart=histogram(f"{title}. {note}", edges, counts, unit="ms", counted="requests", marks=marks, log=True),
        columns=["from ms", "to ms", "requests"],
        rows=[[low, high, int(count)] for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True) if count],
    )


def batch_sizes(samples: Samples) -> Figure | Words:
    """The distribution of batch sizes."""
    title = "Batch sizes"
    found = batch_of(samples.where(samples.ok))
    if found is None:
        return Words(title=title, lines=["Unknown, because no answer reported its batch size."])
    sizes = {size["size"]: size for size in found["sizes"]}
    top = max(*sizes, found["capacity"] or 0, 1)
    counts = [sizes[size]["batches"] if size in sizes else 0.0 for size in range(1, top + 1)]
    note = f"{found['mean']:.2f} requests per batch on average"
    if found["capacity"]:
        full = sizes.get(found["capacity"], {"batches": 0.0})["batches"] / sum(counts)
        note += f", of at most {found['capacity']}; {full:.0%} of the batches were full"
    table = batch_size_table(found)
    edges = [size - 0.5 for size in range(1, top + 2)]
    return Figure(
        title=title,
        note=f"{note}.",
        chart=histogram(f"{title}. {note}.", edges, counts, unit="requests per batch", counted="batches"),
        columns=table.columns,
        rows=table.rows,
    )


def padding(wastes: Mapping[str, float]) -> Figure | Words:
    """The share of padding in the computed lengths.

    Args:
        wastes: name of the measurement to the share of padding, 0 to 1.
    """
    title = "Padding waste"
    if not wastes:
        why = "Unknown. tsbatch handlers that pad report it in model_metrics.log in the log folder."
        return Words(title=title, lines=[why])
    mean = sum(wastes.values()) / len(wastes)
    bars = [(name, [100 * (1 - waste), 100 * waste]) for name, waste in wastes.items()]
    note = f"{mean:.1%} of the computed lengths were padding, on average over the batches."
    return stacked_figure(title, note, ["input", "padding"], bars, unit="%")


def over_time(samples: Samples, *, share: float = 1.0, starts: Sequence[float] = ()) -> list[Part]:
    """Rate, latency and batch size over time.

    Args:
        samples: the requests on a common time axis.
        share: share of all requests that they are, for the rate.
        starts: start of further runs on that axis.
    """
    span = float(np.ptp(samples.sent)) if len(samples) else 0.0
    if span <= 0:
        return [Words(title="Over time", lines=["Too few requests for a chart over time."])]
    # Only parts of a very large log are kept: a short window may fall between two of them.
    limit = WINDOWS if share == 1 else WINDOWS // 5
    windows = _Windows(samples, count=int(np.clip(len(samples) // MIN_IN_WINDOW, 2, limit)))
    begin = float(samples.sent.min())
    marks = [start - begin for start in starts if start > begin]
    failed = windows.count(~samples.ok)
    rates = {"good answers": windows.count(samples.ok) / windows.width / share}
    if failed.any():
        rates["failed"] = failed / windows.width / share
    levels = {"P50": 0.5, "P99": 0.99}
    latencies = {name: windows.quantile(samples.latency, samples.ok, level) for name, level in levels.items()}
    charts = [
        ("Rate over time", "requests/s", rates, "By the time when requests were sent."),
        ("Latency over time", "ms", latencies, "Of good answers, by the time when requests were sent."),
    ]
    batch = windows.mean_batch()
    if not np.isnan(batch).all():
        charts.append(("Batch size over time", "requests", {"mean": batch}, "Mean over batches."))
    end = " Dashed lines separate the runs." if marks else ""
    column = "from s", windows.middles - windows.width / 2
    return [
        line_figure(title, note + end, unit, windows.middles, series, across="s", column=column, marks=marks)
        for title, unit, series, note in charts
    ]


class _Windows:
    """Requests in time windows of equal length."""

    def __init__(self, samples: Samples, count: int) -> None:
        self._samples = samples
        since = samples.sent - samples.sent.min()
        self.width = float(since.max()) / count
        self._window = np.minimum((since / self.width).astype(int), count - 1)
        self._count = count
        self.middles: Column = np.linspace(0.5, count - 0.5, count) * self.width

    def count(self, mask: Any) -> Column:
        """Return the number of requests selected by ``mask`` in each window."""
        return np.bincount(self._window[mask], minlength=self._count).astype(np.float64)

    def quantile(self, values: Column, mask: Any, level: float) -> Column:
        """Return a quantile in each window; NaN in empty ones."""
        found = np.full(self._count, np.nan)
        for window in range(self._count):
            here = values[mask & (self._window == window)]
            if len(here):
                found[window] = np.quantile(here, level)
        return found

    def mean_batch(self) -> Column:
        """Return requests per batch in each window: the requests divided by the batches they make up."""
        known = ~np.isnan(self._samples.batch)
        batches = np.bincount(self._window[known], weights=1 / self._samples.batch[known], minlength=self._count)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Column = np.where(batches > 0, self.count(known) / batches, np.nan)
        return mean
