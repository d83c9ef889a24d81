"""From the start that people really have, step by step, as it would be shown to a colleague."""

from __future__ import annotations

import pytest

from tests.acceptance.support import embedding_archive
from tests.acceptance.tuned import SENTENCES, steps_text, tune

CLIENTS = 20


@pytest.mark.parametrize("batch_size, delay", [(1, 100), (32, 200)])
def test_twenty_clients_on_the_embedding_model(batch_size, delay, tmp_path, capsys, record_property):
    archive = embedding_archive(tmp_path, batch_size=batch_size, delay=delay)
    told = tune(capsys, archive, "--data", SENTENCES, "--concurrency", CLIENTS, "--output", tmp_path / "out")
    for number, line in enumerate(steps_text(told)):
        record_property(f"batch_{batch_size}_step_{number}", line)
    record_property(f"batch_{batch_size}_recommended", f"{told['recommended']} after {told['runs']} runs")
    assert all(len(step["change"].split(",")) == 1 for step in told["steps"]), "one setting a step"
    assert all(step["why"] and step["evidence"] for step in told["steps"])
    assert told["changed"], "so bad a start can be made better"
    before = told["seen"][0]["figures"]
    assert told["expected"]["throughput"]["value"] >= 1.05 * before["throughput"]
