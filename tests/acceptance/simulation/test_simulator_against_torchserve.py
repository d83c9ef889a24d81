"""The simulator against a real TorchServe with a sleeping model, the same arrivals for both."""

from __future__ import annotations

import numpy as np

from benchmarks import simulator_accuracy as accuracy


def test_latencies_throughput_and_batch_sizes_agree(record_property, tmp_path):
    figures = accuracy.measure(accuracy.CELLS, print, tmp_path / "cells.json")
    rows = figures["cells"]
    assert len(rows) >= 20
    assert {row["cell"]["workers"] for row in rows} == {1, 2, 3, 4}
    assert all(row["requests"] >= 5000 and row["no_answer"] == 0 for row in rows)
    for row in rows:
        cell = accuracy.Cell(**row["cell"])
        sides = {side: [round(row[side][name], 1) for name in ("p50", "p99", "rate")] for side in ("real", "simulated")}
        record_property(str(cell), {**sides, "distance": row["distance"]})
    close = [all(accuracy.agrees(row, name) for name in ("p50", "p99")) for row in rows]
    record_property("cells that agree", f"{sum(close)} of {len(close)}")
    assert np.mean(close) >= 0.9
    missed = [target.cells() for target in accuracy.wanted_of(figures) if not target.met]
    assert not missed
