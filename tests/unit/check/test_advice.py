from __future__ import annotations

import pytest

from tsbatch.check.advice import response_timeout, startup_timeout, workers
from tsbatch.system.process_memory import Memory

GB = 10**9
MB = 10**6


@pytest.mark.parametrize(
    "seconds, more, value",
    [
        (183, {}, 280),  # the example of the issue: 274.5, rounded up to ten
        (1, {}, 30),
        (25, {}, 40),
        (20, {"workers": 4, "cores": 2}, 60),
        (20, {"workers": 2, "cores": 4}, 30),
        (2, {"size": 10 * GB}, 110),
    ],
)
def test_startup_timeout(seconds, more, value):
    advice = startup_timeout(seconds, **more)
    assert advice.value == value
    assert f"{seconds:.1f} s" in advice.reason


def test_the_reason_says_what_counted():
    assert "4 workers on 2 cores" in startup_timeout(9, workers=4, cores=2).reason
    assert "cold disk" in startup_timeout(9, size=3 * GB).reason
    assert "cold disk" not in startup_timeout(9, size=MB).reason


@pytest.mark.parametrize("slowest, value", [(0.1, 30), (3.0, 30), (3.1, 40), (20, 200)])
def test_response_timeout(slowest, value):
    assert response_timeout(slowest, 8).value == value


def test_workers_are_limited_by_cores_and_by_memory():
    first, second = Memory(GB, GB, 2 * GB), Memory(100 * MB, 2 * GB, 2 * GB)
    assert workers(first, second, available=10 * GB, cores=4).value == 4
    # 0.8 × 4 GB - 2 GB for the first leave 1.2 GB for others of 0.1 GB
    assert workers(first, second, available=4 * GB, cores=64).value == 13
    assert workers(first, None, available=4 * GB, cores=64).value == 2
    assert workers(first, None, available=GB, cores=4).value == 1
    assert workers(first, second, available=10 * GB, cores=4, gpu=2).value == 2
    assert "2 by GPU memory" in workers(first, second, available=10 * GB, cores=4, gpu=2).reason
