"""Tables of a report: settings and where they come from, the machine, its processes, failures, and single requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_tables import Table
from tsbatch.diagnosis.diagnosis import Diagnosis
from tsbatch.report.document import Words

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
    known, evidence = asdict(diagnosis.known), diagnosis.evidence
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
