"""When an open loop sends."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from scipy import stats

from tsbatch.bench.send_times import Arrivals, punctual_loop, read_trace
from tsbatch.errors import UsageError


def first(arrivals, number):
    return np.array(list(itertools.islice(arrivals, number)))


def test_uniform_arrivals_do_not_drift():
    times = first(Arrivals("uniform", 40.0), 100_001)
    assert times[0] == 0
    assert times[-1] == pytest.approx(2500, abs=1e-9)
    assert np.allclose(np.diff(times), 0.025)


def test_poisson_arrivals_are_independent_and_come_at_the_rate():
    times = first(Arrivals("poisson", 40.0, seed=1), 20_000)
    gaps = np.diff(times, prepend=0.0)
    assert (gaps > 0).all()
    assert stats.kstest(gaps, "expon", args=(0, 1 / 40)).pvalue > 0.01
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 0.02


def test_the_seed_decides():
    assert (first(Arrivals("poisson", 1.0, 3), 2000) == first(Arrivals("poisson", 1.0, 3), 2000)).all()
    assert (first(Arrivals("poisson", 1.0, 3), 10) != first(Arrivals("poisson", 1.0, 4), 10)).all()


def test_a_trace(tmp_path):
    path = tmp_path / "times"
    path.write_text("# taken by hand\n100.5\n\n100\n103.25  # late\n")
    assert list(read_trace(path)) == [0, 0.5, 3.25]
    path.write_text("2026-01-02T03:04:05.500Z\n2026-01-02T04:04:05+01:00\n")
    assert list(read_trace(path)) == [0, 0.5]


@pytest.mark.parametrize(
    "text, message", [("1\nnoon\n", "line 2: 'noon' is not a time"), ("nan", "line 1"), ("#", "no times")]
)
def test_what_is_no_trace(tmp_path, text, message):
    path = tmp_path / "times"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_trace(path)


@pytest.mark.alone
def test_the_loop_wakes_within_the_millisecond():
    async def work():
        import asyncio

        late = []
        for _ in range(40):
            due = time.monotonic() + 0.0042
            await asyncio.sleep(due - time.monotonic())
            late.append(time.monotonic() - due)
        return sorted(late)

    loop = punctual_loop()
    cpu = time.process_time()
    try:
        late = loop.run_until_complete(work())
    finally:
        loop.close()
    assert time.process_time() - cpu < 0.1, "it waits, and does not look at the clock again and again"
    assert late[0] >= 0
    # asyncio itself would round the 4.2 ms up to 5.
    assert late[4] < 0.0006
