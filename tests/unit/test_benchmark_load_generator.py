"""The server that load generators are measured against, and what is made of the figures."""

from __future__ import annotations

import time

import pytest

from benchmarks.load_generator import measure, null_server, shortfalls
from benchmarks.null_server import Stalls
from tests.e2e.support import request


def test_it_answers_whole_requests_until_it_is_told_to_end():
    with null_server("--delay", "20") as url:
        begin = time.monotonic()
        answer = request(url, "POST", "/x", b"a" * 100_000)
        assert (answer.status, answer.body) == (200, b"{}")
        assert time.monotonic() - begin >= 0.02
        assert request(url, "GET", "/").status == 200
    with pytest.raises(ConnectionError):
        request(url, "GET", "/")


def test_what_comes_in_a_stall_is_answered_at_its_end(monkeypatch):
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stalls = Stalls(delay=0.0, stall=1.0, every=10.0)
    for seconds, wait in ((0, 0), (8.9, 0), (9.0, 1.0), (9.75, 0.25), (10.0, 0), (19.5, 0.5)):
        now = 100.0 + seconds
        assert stalls.wait() == pytest.approx(wait)
    now = 100.0
    late = Stalls(delay=0.5, stall=1.0, every=10.0)
    now = 108.75
    assert late.wait() == pytest.approx(1.25), "its answer would fall into the stall"
    assert Stalls(delay=0.5, stall=0.0, every=10.0).wait() == 0.5


def test_what_misses_the_goal_is_named():
    good = {"load": "8 clients", "rate": 5000.0, "per_cpu_second": 6000.0, "failed": 0}
    assert shortfalls([good]) == []
    assert shortfalls([good, {**good, "rate": 1.0}]) == [], "a single client waits"
    assert shortfalls([{**good, "rate": 2000.0}]) == ["2000 requests/s at most"]
    assert shortfalls([{**good, "per_cpu_second": 2999.0, "failed": 2}]) == [
        "8 clients: 2999 requests per CPU second",
        "8 clients: 2 failed",
    ]


def test_each_load_is_measured():
    with null_server() as url:
        found = measure(url, 0.2)
    assert [one["load"] for one in found] == ["1 clients", "8 clients", "64 clients", "3000 requests/s"]
    assert all(one["rate"] > 100 and one["failed"] == 0 and one["p50_ms"] > 0 for one in found)
