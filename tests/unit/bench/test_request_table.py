"""The table of requests."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tsbatch.bench.request_table import COLUMNS, Samples


@pytest.fixture
def samples():
    return Samples(sent=[1.5, 2.5, 3.5], latency=[10, 20.00049, 30], status=[200, 503, 0], queue=[1, math.nan, 3])


def test_a_missing_column_is_unknown(samples):
    assert len(samples) == 3
    assert np.isnan(samples.handler).all()
    assert [name for name, _ in samples.columns()] == ["sent", "latency", "status", "queue"]


def test_a_missing_column_takes_no_memory(samples):
    kept = samples.where(samples.ok)
    assert (samples.handler.base.size, kept.handler.base.size) == (1, 1)
    assert np.isnan(kept.handler).all()
    same = Samples(sent=[1.0, 2.0], latency=np.broadcast_to(5.0, 2), status=[200, 503])
    assert same.where(same.ok).latency.tolist() == [5], "one value for all is a value"


def test_only_2xx_is_ok(samples):
    assert samples.ok.tolist() == [True, False, False]
    assert samples.where(samples.ok).latency.tolist() == [10]


def test_json_and_back(samples):
    text = json.dumps(samples.to_json(), allow_nan=False)
    again = Samples.from_json(json.loads(text))
    assert again.queue.tolist()[::2] == [1, 3]
    assert math.isnan(again.queue[1])
    assert again.latency.tolist() == [10, 20.0, 30]
    assert len(Samples.from_json(Samples([], [], []).to_json())) == 0


def test_json_of_a_later_version_and_broken_json(samples):
    assert len(Samples.from_json({**samples.to_json(), "colour": [1, 2, 3]})) == 3
    with pytest.raises(ValueError, match="columns are missing: status"):
        Samples.from_json({"sent": [1], "latency": [1]})
    with pytest.raises(ValueError, match="queue: expected 1 values"):
        Samples.from_json({"sent": [1], "latency": [1], "status": [200], "queue": [1, 2]})


def test_runs_are_joined(samples):
    both = Samples.join([samples, samples.where(samples.ok)])
    assert both.sent.tolist() == [1.5, 2.5, 3.5, 1.5]
    assert len(Samples.join([])) == 0
    assert set(COLUMNS) >= {"sent", "latency", "status", "batch", "capacity"}
