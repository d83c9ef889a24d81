"""How long a batch takes, as written down and as kept in a file."""

from __future__ import annotations

import numpy as np
import pytest

from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import Overhead
from tsbatch.simulation.fitting import read_service
from tsbatch.simulation.service_time import Machine, ServiceTime, log_normal, parse


@pytest.mark.parametrize(
    "text,means",
    [
        ("20ms", [20, 20, 20]),
        (" 20 ", [20, 20, 20]),
        ("5+2*n", [7, 13, 21]),
        ("5.5 + .5 * n", [6, 7.5, 9.5]),
        ("1:20,8:62", [20, 38, 62]),
        ("4:10,2:6", [4, 10, 18]),
    ],
)
def test_written_down(text, means):
    np.testing.assert_allclose(parse(text).mean(np.array([1.0, 4.0, 8.0])), means)


@pytest.mark.parametrize("text", ["", "fast", "-3ms", "5+n", "1:20,2", "1:20,,", "2*n"])
def test_no_service_time(text):
    with pytest.raises(UsageError, match="20ms"):
        parse(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sizes": [2, 1], "times": [1, 2]},
        {"sizes": [1], "times": [1, 2]},
        {"sizes": [], "times": []},
        {"sizes": [1], "times": [-1]},
        {"sizes": [1], "times": [float("nan")]},
        {"sizes": [1], "times": [1], "spread": []},
    ],
)
def test_points_that_are_none(wrong):
    with pytest.raises(UsageError, match="ascending sizes"):
        ServiceTime(**wrong)


def test_a_time_is_never_nothing():
    service = ServiceTime(sizes=[4, 8], times=[10.0, 50.0])
    assert service.mean(np.array([1.0, 2.0, 9.0])).tolist() == [0.01, 0.01, 60.0]


def test_the_spread():
    factors = np.array(log_normal(0.3))
    assert factors.mean() == pytest.approx(1)
    assert factors.std() == pytest.approx(0.3, rel=0.01)
    assert log_normal(0) == (1.0,)
    handler = parse("10ms", variation=0.3).handler(20_000, items=None, lengths=None, seed=1)
    times = [handler([0]) for _ in range(20_000)]
    assert np.mean(times) == pytest.approx(10, rel=0.02)
    assert np.std(times) == pytest.approx(3, rel=0.03)


def test_workers_that_share_cores_are_slower():
    service = ServiceTime(
        sizes=[1, 2], times=[10.0, 20.0], per_length=1.0, machine=Machine(workers=1, cores=4, worker_cores=2.0)
    )
    assert service.with_workers(2) is service
    three = service.with_workers(3)
    assert list(three.times) == [15.0, 30.0]
    assert three.per_length == 1.5
    assert Machine(workers=4, cores=4, worker_cores=2.0).slower_with(1) == 0.5
    assert Machine(workers=4).slower_with(8) == 1.0


def test_what_the_requests_were_like():
    service = ServiceTime(sizes=[1], times=[1.0], items=(1.0, 3.0), lengths=(10.0, 20.0), per_length=0.1)
    assert sorted(set(service.draw_items(100, 0))) == [1.0, 3.0]
    assert sorted(set(service.draw_lengths(100, 0))) == [10.0, 20.0]
    assert parse("1ms").draw_items(100, 0) is None
    assert parse("1ms").draw_lengths(100, 0) is None


def test_kept_in_a_file(tmp_path):
    service = ServiceTime(
        sizes=[1, 8],
        times=[10.0, 30.0],
        spread=[0.9, 1.1],
        per_length=0.01,
        items=(1.0, 2.0),
        lengths=(30.0,),
        overhead=Overhead(frontend=1.0, batch=2.0, request=0.5),
        machine=Machine(workers=2, cores=4, worker_cores=1.5),
        source="b.json",
    )
    path = tmp_path / "service.json"
    service.save(path)
    assert read_service(path).to_json() == service.to_json()


@pytest.mark.parametrize(
    "text,said",
    [
        ('{"kind": "service-time", "schema": 2}', "schema 2"),
        ('{"kind": "service-time", "schema": 1}', "damaged: KeyError"),
        ("{", "is not JSON"),
        ('{"kind": "other"}', "is not a load test result"),
        ('{"service": []}', "no service times"),
    ],
)
def test_files_that_are_none(tmp_path, text, said):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_service(tmp_path / "x.json")
