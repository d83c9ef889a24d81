from __future__ import annotations

import os

import pytest

from tests.unit.diagnosis.log_lines import answered, flushing, refused, told
from tsbatch.cli.top_command import cells
from tsbatch.diagnosis.live_status import LogTail, Top
from tsbatch.diagnosis.prometheus import Scrape


class Management:
    """Tells of one model, version 1.0, with two workers: this process and one that is gone."""

    is_local = True

    def __init__(self):
        self.model = {
            "modelName": "m", "modelVersion": "1.0", "minWorkers": 2, "batchSize": 8, "maxBatchDelay": 50,
            "workers": [{"pid": os.getpid(), "status": "READY"}, {"pid": 2**22 + 1, "status": "UNLOADING"}],
            "jobQueueStatus": {"remainingCapacity": 97, "pendingRequests": 3},
        }  # fmt: skip

    def every_version(self):
        yield self.model

    def versions(self, name):
        return [self.model] if name == "m" else []


@pytest.fixture
def clock():
    moments = iter([0.0, 2.0, 6.0])
    return lambda: next(moments)


def append(path, *groups):
    with path.open("a") as file:
        file.writelines(f"{line}\n" for group in groups for line in group)


def batch(at, jobs, *, waited=10, status=200):
    lines = [*flushing(at), *told(at + 40, jobs, "40")]
    return lines + [line for job in jobs for line in answered(at + 42, job, waited, 42, status=status)]


def test_what_a_log_gained_since_the_last_look(tmp_path, clock):
    log = tmp_path / "ts_log.log"
    append(log, batch(-500, ["old"]), flushing(-400))
    top = Top(Management(), log=LogTail(tmp_path), clock=clock)
    append(log, batch(100, ["a", "b"]), batch(200, ["c"]), batch(300, ["d"], status=400), refused(310), flushing(400))
    (row,) = top.look()
    assert (row.model, row.version, row.ready, row.wanted, row.waiting, row.places) == ("m", "1.0", 1, 2, 3, 100)
    assert (row.rate, row.failed) == (1.5, 0.4)
    assert row.batch == pytest.approx(4 / 3)
    assert (row.queue, row.assembly, row.handler, row.latency) == (0, 10, 40, 52)
    assert 2**20 < row.memory < 2**34
    append(log, told(449, ["e"], "40"), answered(450, "e", 30, 50), flushing(500))
    (row,) = top.look("m")
    assert (row.rate, row.assembly) == (0.25, 30)


def test_a_quiet_interval_has_no_figures(tmp_path, clock):
    (tmp_path / "ts_log.log").touch()
    (row,) = Top(Management(), log=LogTail(tmp_path), clock=clock).look()
    assert (row.rate, row.p99, row.waiting) == (None, None, 3)
    assert cells(row)[:6] == ["m", "1.0", None, None, None, "3/100"]
    assert cells(row)[-2] == "1/2 READY"


def test_means_from_prometheus(clock):
    sums = {"ts_inference_requests_total": 0.0, "ts_inference_latency_microseconds": 0.0}
    grown = {"ts_inference_requests_total": 20.0, "ts_inference_latency_microseconds": 20 * 50_000.0}
    scrapes = iter([Scrape(0, {"m": sums}), Scrape(2, {"m": grown}), Scrape(6, {"m": grown})])
    top = Top(Management(), scrape=lambda: next(scrapes), clock=clock)
    (row,) = top.look()
    assert (row.rate, row.latency, row.p99) == (10, 50, None)
    (row,) = top.look()
    assert row.rate is None


def test_neither_log_nor_metrics(clock):
    (row,) = Top(Management(), clock=clock).look()
    assert (row.ready, row.rate) == (1, None)
