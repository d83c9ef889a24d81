"""Tables of a report: settings and where they come from, the machine, its processes, failures, and single requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from tsbatch.bench.request_table import Samples
from tsbatch.bench.resource_monitor import on_gpus
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.diagnosis.diagnosis import Diagnosis
from tsbatch.report.document import Table, Words

MEGABYTE: Final = 10**6
ROWS: Final = 500
SLOWEST: Final = 100

BY_SERVER: Final = "told by the server (GET /models), which does not say who set it"
BY_BATCHES: Final = "seen from the batches"
BY_KNOWN: Final = {
    "workers": ("workers", "told by the server, or those that answered"),
    "batch_size": ("batchSize", BY_SERVER),
    "max_batch_delay": ("maxBatchDelay", BY_SERVER),
    "queue_size": ("jobQueueSize", BY_SERVER),
    "cores": ("cores", "of the machine"),
    "free_memory": ("free memory", "of the machine"),
    "worker_memory": ("a worker's memory", "measured"),
    "worker_cores": ("a worker's cores while in its handler", "measured"),
    "threads": ("a worker's threads", "its environment"),
}


def settings_of_target(target: Mapping[str, Any]) -> Table | Words:
    """The model's settings under the load, and the layer that each comes from."""
    origins = target.get("origins") or {}
    settings = target.get("settings") or {}
    rows = [[name, value, origins.get(name, BY_SERVER)] for name, value in settings.items() if value is not None]
    title = "Settings, and who set them"
    if not rows:
        return Words(title=title, lines=["Not known: the server was not asked. Give --server, or a model's name."])
    return Table(title=title, columns=["setting", "value", "from"], rows=rows, note="Delays in ms, time-outs in s.")


def settings_of_diagnosis(diagnosis: Diagnosis) -> Table | Words:
    """What was known beside the requests, and what the requests themselves show."""
    known, evidence = diagnosis.known.to_json(), diagnosis.evidence
    seen = {"batch_size": evidence.batch_size, "max_batch_delay": evidence.delay}
    rows = []
    for field, (name, source) in BY_KNOWN.items():
        if known[field] is not None:
            rows.append([name, _plain(name, known[field]), source])
        elif seen.get(field) is not None:
            rows.append([name, seen[field], BY_BATCHES])
    title = "Settings, and how they are known"
    if not rows:
        return Words(title=title, lines=["Nothing is known beside the requests."])
    return Table(title=title, columns=["setting", "value", "from"], rows=rows, note="Delays in ms.")


def pairs(title: str, values: Mapping[str, Any]) -> Table:
    """A table of names and values; what is not known is left out."""
    rows = [[name, _plain(name, value)] for name, value in values.items() if value not in (None, [])]
    return Table(title=title, columns=["what", "value"], rows=rows)


def _plain(name: str, value: Any) -> Any:
    if name.endswith("memory"):
        return f"{value / 10**9:.2f} GB"
    return ", ".join(f"{one:g}" for one in value) if isinstance(value, list | tuple) else value


def processes(runs: Sequence[Run]) -> Table | None:
    """What the server's processes used, run by run; None when nobody watched."""
    rows = [
        [
            turn + 1,
            one["name"],
            one["cpu"],
            round(one["memory_rss"] / MEGABYTE),
            None if one["memory_private"] is None else round(one["memory_private"] / MEGABYTE),
        ]
        for turn, run in enumerate(runs)
        for one in run.workers
    ]
    columns = ["run", "process", "cores", "memory MB", "private MB"]
    if held := on_gpus(one for run in runs for one in run.workers):
        columns.append("GPU MB")
        rows = [[*row, round(memory / MEGABYTE)] for row, memory in zip(rows, held, strict=True)]
    return Table(title="Processes of the server", columns=columns, rows=rows) if rows else None


def failures(runs: Sequence[Run]) -> Table | None:
    """Failed requests by status and reason; None without any."""
    counts: dict[tuple[object, object], int] = {}
    for run in runs:
        for error in run.errors:
            kind = (error["status"] or "none", error["reason"])
            counts[kind] = counts.get(kind, 0) + error["count"]
    rows = [[status, reason, count] for (status, reason), count in counts.items()]
    return Table(title="Failed requests", columns=["status", "reason", "count"], rows=rows) if rows else None


def figures_of(result: BenchResult) -> Table:
    """Rate and latency of every step with their intervals."""
    rows: list[list[object]] = []
    for step in result.summary:
        named: dict[str, Mapping[str, Any]] = {"requests/s": step["rate"], "items/s": step["items_rate"]}
        if step["goodput"]:
            named[f"goodput/s (<= {step['goodput']['limit']:g} ms)"] = _figure(step["goodput"]["rate"])
        named |= {f"latency {name}, ms": one for name, one in step["latency"].items()}
        rows += [[step["step"], name, one["value"], _interval(one), step["runs"]] for name, one in named.items()]
    note = "95 % intervals: with one run they hold inside it; with several they hold what differs between runs, too."
    columns = ["step", "figure", "value", "interval", "runs"]
    return Table(title="Rate and latency", columns=columns, rows=rows, note=note)


def _figure(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {"value": value, "low": None, "high": None}


def _interval(figure: Mapping[str, Any]) -> str | None:
    low, high = figure.get("low"), figure.get("high")
    return None if low is None or high is None else f"{low:.4g} to {high:.4g}"


def raw(samples: Samples) -> Table:
    """Single requests: all of them when they are few, otherwise the slowest and others evenly over time."""
    order = np.argsort(samples.sent, kind="stable")
    note = "Times in ms."
    if len(samples) > ROWS:
        slowest = np.argsort(-np.nan_to_num(samples.latency[order]), kind="stable")[:SLOWEST]
        evenly = np.linspace(0, len(order) - 1, ROWS - SLOWEST).astype(int)
        chosen = np.union1d(slowest, evenly)
        order = order[chosen]
        note += (
            f" {len(order)} of {len(samples)} requests: the {SLOWEST} slowest, and others evenly over time. All of"
            " them are in the file of tsbatch bench --output, or in the log."
        )
    known = [(name, values[order]) for name, values in samples.columns() if name != "sent"]
    since = samples.sent[order] - (samples.sent.min() if len(samples) else 0.0)
    columns = [np.round(since, 3), *(np.round(values, 3) for _, values in known)]
    names = ["sent s", *(name for name, _ in known)]
    rows = [[None if np.isnan(value) else value for value in row] for row in zip(*columns, strict=True)]
    return Table(title="Single requests", columns=names, rows=rows, note=note, folded=True)
