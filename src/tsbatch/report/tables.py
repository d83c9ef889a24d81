"""Tables of a report: settings and their sources, names and values, and single requests."""

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

BY_SERVER: Final = "reported by the server (GET /models), which does not say where it is set"
BY_BATCHES: Final = "derived from the batches"
SOURCES: Final = {
    "workers": ("workers", "reported by the server, or those that answered"),
    "batch_size": ("batchSize", BY_SERVER),
    "max_batch_delay": ("maxBatchDelay", BY_SERVER),
    "queue_size": ("jobQueueSize", BY_SERVER),
    "cores": ("cores", "of the machine"),
    "free_memory": ("free memory", "of the machine"),
    "worker_memory": ("a worker's memory", "measured"),
    "worker_cores": ("a worker's cores while in its handler", "measured"),
    "threads": ("a worker's threads", "its environment"),
}
"""For each field of :class:`tsbatch.diagnosis.model_facts.Known` the name of the setting and its source."""


def settings_of_target(target: Mapping[str, Any]) -> Table | Words:
    """The model's settings under the load, and where each is set."""
    origins = target.get("origins") or {}
    settings = target.get("settings") or {}
    rows = [[name, value, origins.get(name, BY_SERVER)] for name, value in settings.items() if value is not None]
    title = "Settings and where they are set"
    if not rows:
        return Words(title=title, lines=["Unknown: the server was not asked. Give --server, or a model's name."])
    return Table(title=title, columns=["setting", "value", "from"], rows=rows, note="Delays in ms, timeouts in s.")


def settings_of_diagnosis(diagnosis: Diagnosis) -> Table | Words:
    """The settings that are known or derived from the requests."""
    known, evidence = asdict(diagnosis.known), diagnosis.evidence
    seen = {"batch_size": evidence.batch_size, "max_batch_delay": evidence.delay}
    rows = []
    for field, (name, source) in SOURCES.items():
        if known[field] is not None:
            rows.append([name, _plain(name, known[field]), source])
        elif seen.get(field) is not None:
            rows.append([name, seen[field], BY_BATCHES])
    title = "Settings and their sources"
    if not rows:
        return Words(title=title, lines=["Unknown; the source only has requests."])
    return Table(title=title, columns=["setting", "value", "from"], rows=rows, note="Delays in ms.")


def pairs(title: str, values: Mapping[str, Any]) -> Table:
    """A table of names and values, without unknown values."""
    rows = [[name, _plain(name, value)] for name, value in values.items() if value not in (None, [])]
    return Table(title=title, columns=["name", "value"], rows=rows)


def _plain(name: str, value: Any) -> Any:
    if name.endswith("memory"):
        return f"{value / 10**9:.2f} GB"
    return ", ".join(f"{one:g}" for one in value) if isinstance(value, list | tuple) else value


def raw(samples: Samples) -> Table:
    """Single requests: all of them, or the slowest and others evenly spread over time."""
    order = np.argsort(samples.sent, kind="stable")
    note = "Times in ms."
    if len(samples) > ROWS:
        slowest = np.argsort(-np.nan_to_num(samples.latency[order]), kind="stable")[:SLOWEST]
        evenly = np.linspace(0, len(order) - 1, ROWS - SLOWEST).astype(int)
        chosen = np.union1d(slowest, evenly)
        order = order[chosen]
        note += (
            f" {len(order)} of {len(samples)} requests: the {SLOWEST} slowest, and others evenly spread over"
            " time. The file of tsbatch bench --output, or the log, has all of them."
        )
    since = samples.sent[order] - (samples.sent.min() if len(samples) else 0.0)
    columns = {"sent s": since} | {name: values[order] for name, values in samples.columns() if name != "sent"}
    rows = list(zip(*(np.round(values, 3).tolist() for values in columns.values()), strict=True))
    return Table(title="Single requests", columns=[*columns], rows=rows, note=note, folded=True)
