"""Results of load tests that nobody ran."""

from __future__ import annotations

import numpy as np

from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_file import BenchResult, Run


def result_of(samples, *, workers=1, batch_size=8, watched=(), cores=None):
    """The result of a run with these requests."""
    return BenchResult(
        target={
            "address": "http://127.0.0.1/",
            "model": "m",
            "version": "1.0",
            "settings": {"batchSize": batch_size, "workers": workers},
            "origins": {},
        },
        plan={"loop": "open"},
        environment={"cores": cores},
        runs=[
            Run(
                started="2026-01-01T00:00:00+00:00",
                step=None,
                seconds=10.0,
                answered=len(samples),
                answered_items=float(len(samples)),
                samples=samples,
                workers=watched,
            )
        ],
    )


def batches(rows):
    """Samples of batches: (hand-over s, members' items, their lengths, handler ms, queue ms, assembly ms)."""
    columns = {name: [] for name in ("sent", "latency", "queue", "assembly", "handler", "batch", "items", "length")}
    for handed, items, lengths, handler, queue, assembly in rows:
        for item, length in zip(items, lengths, strict=True):
            columns["sent"].append(handed - (queue + assembly) / 1000)
            columns["latency"].append(queue + assembly + handler + 3.0)
            columns["queue"].append(queue)
            columns["assembly"].append(assembly)
            columns["handler"].append(handler)
            columns["batch"].append(len(items))
            columns["items"].append(item)
            columns["length"].append(length)
    values = {name: np.array(column, dtype=float) for name, column in columns.items()}
    return Samples(status=np.full(len(values["sent"]), 200.0), **values)
