"""Charts of the latency by parts and of the handler time by stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tsbatch.bench.request_table import STAGES, Column, Samples
from tsbatch.diagnosis.latency_breakdown import OUTSIDE, PARTS, Split, parts_of
from tsbatch.report.charts import stacked_figure
from tsbatch.report.document import Figure, Words

LEVELS: Final = {"P50": 0.5, "P90": 0.9, "P95": 0.95, "P99": 0.99, "P99.9": 0.999}
AROUND: Final = 0.01
"""Share of the requests on each side of a percentile that represent it; less at the end of the distribution."""

NAMES: Final = {"queue": "queue wait", "assembly": "assembly wait", "handler": "handler time", OUTSIDE: "outside"}
EXPLANATION: Final = (
    "Queue wait: until a worker was free. Assembly wait: until its batch left. Outside: network, client, TorchServe "
    "itself. Each bar is the mean of the requests around that percentile of the latency, so its parts add up."
)
UNKNOWN: Final = (
    "Unknown, because no good answer reported its waits. They are known if the server runs a tsbatch handler and the "
    "client sends X-Request-Start (tsbatch bench does), and from TorchServe's log folder: tsbatch diagnose LOGS."
)

Bars = Sequence[tuple[str, Sequence[float]]]


def latency_split(samples: Samples) -> Figure | Words:
    """The latency by part, for the mean and by percentile."""
    title = "Latency by part"
    good = samples.where(samples.ok & ~np.isnan(samples.queue + samples.assembly + samples.handler))
    if not len(good):
        return Words(title=title, lines=[UNKNOWN])
    parts = parts_of(good)
    return _split(title, bars_of({name: parts[name] for name in PARTS}, good.latency), EXPLANATION)


def mean_split(split: Split) -> Figure:
    """The latency by part if only means are known."""
    means = [split.part(name).mean for name in PARTS]
    return _split("Latency by part", [("mean", means)], "Only means are known from this source.")


def _split(title: str, bars: Bars, note: str) -> Figure:
    names = [NAMES[name] for name in PARTS]
    name, parts = bars[-1]
    largest = int(np.argmax(parts))
    share = parts[largest] / (sum(parts) or 1.0)
    summary = f"At {name} the {names[largest]} is {share:.0%} of the latency." if name != "mean" else ""
    return stacked_figure(title, f"{summary} {note}".strip(), names, bars)


def stage_split(samples: Samples) -> Figure | None:
    """The handler time by stage, at the percentiles of the handler time; None if no stage is known."""
    stages = [name for name in STAGES if not np.isnan(getattr(samples, name)).all()]
    good = samples.where(samples.ok & ~np.isnan(samples.handler))
    if not stages or not len(good):
        return None
    columns = {name: np.nan_to_num(getattr(good, name)) for name in stages}
    rest = np.maximum(0.0, good.handler - sum(columns.values()))
    bars = bars_of({**columns, "rest": rest}, good.handler)
    note = "Each bar is the mean of the requests around that percentile of the handler time."
    return stacked_figure("Handler time by stage", note, [*stages, "rest"], bars)


def bars_of(parts: Mapping[str, Column], by: Column) -> list[tuple[str, list[float]]]:
    """Return the mean of each part over all requests, and over those around each percentile of ``by``.

    Percentiles without any request beyond them are omitted.

    Args:
        parts: columns of one length n.
        by: the column that orders the requests, shape (n,).
    """
    order = np.argsort(by, kind="stable")
    bars = [("mean", [float(values.mean()) for values in parts.values()])]
    for name, level in LEVELS.items():
        beyond = 1 - level
        if len(order) * beyond + 1e-9 < 1:
            continue
        reach = min(AROUND, beyond / 2)
        first = int((level - reach) * len(order))
        around = order[first : max(first + 1, int(np.ceil((level + reach) * len(order))))]
        bars.append((name, [float(values[around].mean()) for values in parts.values()]))
    return bars
