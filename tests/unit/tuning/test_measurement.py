"""What a load test says, as one observation."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.tuning.made_up import START
from tsbatch.bench.http_client import Address
from tsbatch.bench.request_bodies import JSON, Body
from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.summary import summarize
from tsbatch.bench.target import environment
from tsbatch.diagnosis.model_facts import Known
from tsbatch.errors import UsageError
from tsbatch.tuning import measurement
from tsbatch.tuning.measurement import Bench, Workload
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.ranking import Traffic

WORKLOAD = Workload(traffic=Traffic(rate=0.05), bodies=[Body(b"1", JSON)])


def instance():
    nobody = SimpleNamespace(wait_ready=lambda _: None)
    return SimpleNamespace(name="x", running=lambda: True, management=lambda: contextlib.nullcontext(nobody))


def measured(monkeypatch, samples, workers=(), **generator):
    """What the bench makes of a run with these requests."""
    target = SimpleNamespace(pids={}, address=Address.parse("http://127.0.0.1:1/"), tokens=None, to_json=dict)
    found = Run(
        started="2026-01-01T00:00:00+00:00",
        step=0.05,
        seconds=10.0,
        answered=len(samples),
        answered_items=len(samples),
        samples=samples,
        workers=workers,
        generator=generator,
    )
    found = replace(found, summary=summarize(found, limit=None, timeout=30.0))
    monkeypatch.setattr(measurement, "find_target", lambda *_, **__: target)
    result = BenchResult(target={}, plan={}, environment=environment(), runs=[found])
    monkeypatch.setattr(measurement, "bench", lambda *_: result)
    monkeypatch.setattr(measurement, "known_of", lambda *_: Known())
    return Bench(WORKLOAD).run(instance(), "embed", START)


def requests(count):
    return Samples(sent=np.arange(count) / 20, latency=np.full(count, 5.0), status=np.full(count, 200.0))


def test_a_run_without_a_request_says_nothing(monkeypatch):
    with pytest.raises(UsageError, match=r"no request was sent in 10 s .*; use a longer --duration"):
        measured(monkeypatch, Samples([], [], []))


def test_what_was_wrong_with_the_load_stays_with_the_observation(monkeypatch):
    found = measured(monkeypatch, requests(200), cpu=0.99)
    assert list(found.doubts) == ["busy"]
    assert "the load generator was the bottleneck" in found.doubts["busy"]
    assert Observation.from_json(found.to_json()).doubts == found.doubts
    assert measured(monkeypatch, requests(200), cpu=0.2).doubts == {}


def test_too_few_requests_for_a_p99_are_told(monkeypatch):
    assert measured(monkeypatch, requests(99)).doubts == {
        "few": "a run had 99 requests, and a P99 needs 100; use longer runs or a higher load"
    }
    assert measured(monkeypatch, requests(100)).doubts == {}


def test_what_counts_of_gpus_is_the_one_of_which_the_workers_hold_the_largest_share(monkeypatch):
    monkeypatch.setattr(measurement.gpus, "total", lambda: {"a": 10**10, "b": 4 * 10**9, "c": 1})
    on_gpus = [{"a": 5 * 10**9}, {"b": 10**9}, {"b": 2 * 10**9}]
    used = {"cpu": 0.5, "memory_rss": 2, "memory_private": 1, "gone": False}
    workers = [{"name": f"worker {number}", "memory_gpus": one, **used} for number, one in enumerate(on_gpus)]
    server = {"name": "server", "memory_gpus": {"a": 10**10}, **used}
    found = measured(monkeypatch, requests(200), [*workers, server])
    assert (found.figures.gpu_memory, found.known.worker_gpu_memory, found.known.gpus) == (0.75, 0.5, 3)
    assert Observation.from_json(found.to_json()).figures == found.figures
    found = measured(monkeypatch, requests(200), [{**server, "name": "worker 9000", "memory_gpus": {}}])
    assert (found.figures.gpu_memory, found.known.worker_gpu_memory, found.known.gpus) == (None, None, None)
