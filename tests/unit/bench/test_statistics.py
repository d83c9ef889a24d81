"""Figures against NumPy and SciPy, intervals against what is known to be true."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import signal, stats

from tsbatch.bench.statistics import (
    PERCENTILES,
    batch_histogram,
    correlation_time,
    distribution,
    latency_histogram,
    mean_of_runs,
    percentiles,
    rate_interval,
)

LATENCIES = arrays.arrays(np.float64, st.integers(1, 300), elements=st.floats(0.001, 1e6))


def wavy(random, n, persistence):
    """Log-normal latencies in which neighbours are alike: an AR(1) process of their logarithms."""
    noise = random.normal(size=n + 200) * np.sqrt(1 - persistence**2)
    return np.exp(3 + 0.5 * signal.lfilter([1], [1, -persistence], noise)[200:])


@given(LATENCIES)
def test_percentiles_are_those_of_numpy_and_scipy(values):
    figures = percentiles(values)
    assert figures["mean"] == pytest.approx(np.mean(values))
    assert figures["max"] == values.max()
    for name, share in PERCENTILES.items():
        if name in figures:
            assert figures[name] == pytest.approx(np.percentile(values, 100 * share))
            assert figures[name] == pytest.approx(stats.mstats.mquantiles(values, share, alphap=1, betap=1)[0])
        else:
            assert len(values) * (1 - share) < 1


@pytest.mark.parametrize(
    "n, known", [(1, []), (2, ["p50"]), (100, ["p50", "p90", "p95", "p99"]), (1000, [*PERCENTILES])]
)
def test_a_percentile_needs_a_value_beyond_it(n, known):
    assert [name for name in percentiles(np.arange(1.0, n + 1)) if name.startswith("p")] == known


def test_without_values_there_is_nothing():
    assert percentiles(np.empty(0)) == {}
    assert distribution(np.empty(0)).figures == {}


@pytest.mark.parametrize("persistence", [0.0, 0.5, 0.9])
def test_the_correlation_time_of_an_autoregression_is_known(persistence):
    random = np.random.default_rng(1)
    series = np.log(wavy(random, 200_000, persistence))
    assert correlation_time(series) == pytest.approx((1 + persistence) / (1 - persistence), rel=0.12)


def test_constant_values_are_independent():
    assert correlation_time(np.full(100, 3.0)) == 1
    figures = distribution(np.full(1000, 3.0)).figures
    assert (figures["p50"].value, figures["p50"].low, figures["p50"].high) == (3, 3, 3)


@pytest.mark.parametrize("persistence", [0.0, 0.9])
def test_the_intervals_hold_what_they_promise(persistence):
    """Of 95 % intervals of 60 runs about 57 hold the true value; drawn without blocks a third of them would."""
    random = np.random.default_rng(2)
    true = {"mean": np.exp(3.125), "p50": np.exp(3), "p90": np.exp(3 + 0.5 * stats.norm.ppf(0.9))}
    true["p99"] = np.exp(3 + 0.5 * stats.norm.ppf(0.99))
    hits = dict.fromkeys(true, 0)
    for seed in range(60):
        figures = distribution(wavy(random, 8000, persistence), seed).figures
        for name, value in true.items():
            hits[name] += figures[name].low <= value <= figures[name].high
    assert all(52 <= count <= 60 for count in hits.values()), hits


def test_independent_intervals_are_those_of_scipys_bootstrap():
    values = np.random.default_rng(3).lognormal(3, 0.5, 2000)
    ours = distribution(values).figures
    for name, statistic in {"p90": lambda x, axis: np.quantile(x, 0.9, axis=axis), "mean": np.mean}.items():
        theirs = stats.bootstrap(
            (values,), statistic, n_resamples=1000, method="percentile", random_state=4
        ).confidence_interval
        width = theirs.high - theirs.low
        assert ours[name].low == pytest.approx(theirs.low, abs=0.25 * width)
        assert ours[name].high == pytest.approx(theirs.high, abs=0.25 * width)


def test_unknown_intervals_are_none():
    values = np.random.default_rng(5).lognormal(3, 0.5, 500)
    figures = distribution(values).figures
    assert figures["p95"].low is not None
    assert figures["p99"].low is None, "five values lie beyond it"
    assert figures["max"].low is None
    # A run that is a single wave is like a single request.
    rising = distribution(np.linspace(10.0, 20.0, 5000))
    assert rising.blocks == 0
    assert rising.figures["p50"].low is None


def test_the_mean_over_runs_has_students_interval():
    runs = [100.0, 110.0, 95.0, 104.0]
    logs = np.log(runs)
    low, high = np.exp(stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs)))
    figure = mean_of_runs(runs)
    assert (figure.value, figure.low, figure.high) == pytest.approx((stats.gmean(runs), low, high))
    assert mean_of_runs([7.0]).low is None
    low, high = stats.t.interval(0.95, 1, 0.5, stats.sem([0.0, 1.0]))
    assert (mean_of_runs([0.0, 1.0]).low, mean_of_runs([0.0, 1.0]).high) == pytest.approx((low, high))


def test_the_rate_inside_a_run_holds_what_it_promises():
    random = np.random.default_rng(11)
    hits = 0
    for _ in range(200):
        ends = random.exponential(1 / 50, 2000).cumsum()
        ends = ends[ends < 20]
        figure = rate_interval(ends, 20.0, len(ends) / 20)
        hits += figure.low <= 50 <= figure.high
    assert 180 <= hits <= 199
    assert rate_interval(ends[:90], 2.0, 45.0).low is None, "too few to tell"


@given(LATENCIES)
def test_every_latency_is_in_the_histogram(values):
    histogram = latency_histogram(values, 20)
    assert sum(histogram["counts"]) == len(values)
    assert len(histogram["edges"]) == 21
    assert latency_histogram(np.zeros(3)) == {"edges": [], "counts": []}


def test_batches_are_counted_by_requests_and_by_batches():
    sizes = np.array([8.0] * 16 + [3.0] * 3 + [np.nan])
    assert batch_histogram(sizes) == [
        {"size": 3, "requests": 3, "batches": 1.0},
        {"size": 8, "requests": 16, "batches": 2.0},
    ]
    assert batch_histogram(np.array([np.nan])) == []
