"""Pure functions for percentiles, confidence intervals, rates and histograms.

Latencies of one run are not independent: a slow moment affects many consecutive requests. So intervals come from a
bootstrap over blocks of the run, each much longer than its autocorrelation time. Intervals within a run cannot cover
the variation between runs; that takes repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
CONFIDENCE: Final = 0.95
RESAMPLES: Final = 1000
MAX_BLOCKS: Final = 200
MIN_BLOCKS: Final = 10
"""With fewer blocks their variance is unknown."""

TIMES_IN_BLOCK: Final = 10
"""Length of a block in correlation times, which makes blocks almost independent."""

BEYOND: Final = 10
"""Minimum number of values beyond a percentile for an interval."""

RATE_PIECES: Final = 20
GRID: Final = 1024


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its confidence interval (:data:`CONFIDENCE`); None if the interval is unknown."""

    value: float
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """Return a JSON object."""
        return {name: None if value is None else round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, percentiles and maximum of values, with intervals.

    Attributes:
        figures: by the names ``mean``, those of :data:`PERCENTILES`, and ``max``; percentiles without any value beyond
            them are omitted.
        correlation: integrated autocorrelation time, the number of values per independent one; 1 if independent.
        blocks: number of bootstrap blocks; 0 if there are too few for intervals.
    """

    figures: Mapping[str, Estimate]
    correlation: float = 1.0
    blocks: int = 0


def percentiles(values: Values) -> dict[str, float]:
    """Return mean, percentiles and maximum of ``values``, shape (n,), interpolated like ``numpy.percentile``.

    Percentiles without any value beyond them are omitted; empty without values.
    """
    if not len(values):
        return {}
    known = {name: share for name, share in PERCENTILES.items() if _beyond(len(values), share) >= 1}
    figures = {name: float(np.quantile(values, share)) for name, share in known.items()}
    return {"mean": float(values.mean()), **figures, "max": float(values.max())}


def distribution(values: Values, seed: int = 0) -> Distribution:
    """Return mean, percentiles and maximum of ``values``, shape (n,), with intervals.

    Args:
        values: positive numbers in the order of measurement.
        seed: seed of the bootstrap.
    """
    figures = percentiles(values)
    if not figures:
        return Distribution({})
    slowest = (values > np.quantile(values, 0.99)).astype(np.float64)
    correlation = max(correlation_time(np.log(np.maximum(values, 1e-9))), correlation_time(slowest))
    blocks = int(min(MAX_BLOCKS, len(values) / (TIMES_IN_BLOCK * correlation)))
    intervals = _bootstrap(values, blocks, list(figures), seed) if blocks >= MIN_BLOCKS else {}
    return Distribution(
        {name: Estimate(value, *intervals.get(name, (None, None))) for name, value in figures.items()},
        correlation,
        blocks if intervals else 0,
    )


def correlation_time(values: Values) -> float:
    """Return the integrated autocorrelation time of ``values``, shape (n,), in steps; 1 if independent.

    The sum 1 + 2·Σρ(k) is cut at the first k that is five times the sum so far (Sokal's window).
    """
    n = len(values)
    centred = values - values.mean()
    if n < 2 or values.min() == values.max():
        return 1.0
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size)) ** 2
    correlation = np.fft.irfft(spectrum, size)[:n]
    times = 2 * np.cumsum(correlation / correlation[0]) - 1
    beyond = np.arange(n) >= 5 * times
    return float(max(1.0, times[beyond.argmax() if beyond.any() else n - 1]))


def _beyond(n: int, share: float) -> float:
    # 1 - 0.9 is a little less than 0.1.
    return n * (1 - share) + 1e-9


def _bootstrap(values: Values, blocks: int, names: Sequence[str], seed: int) -> dict[str, tuple[float, float]]:
    """Return intervals of figures: blocks are drawn with replacement, as counts over a grid of order statistics."""
    n = len(values)
    block = np.arange(n) * blocks // n
    # Order statistics: evenly over all values, and each of the slowest.
    ranks = np.concatenate([np.linspace(0, n - 1, GRID).astype(int), np.arange(max(0, n - GRID), n)])
    grid = np.unique(np.sort(values)[ranks])
    position = np.searchsorted(grid, values)
    counts = np.bincount(block * len(grid) + position, minlength=blocks * len(grid)).reshape(blocks, -1)
    drawn = np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), RESAMPLES).astype(np.float64)
    below = drawn @ counts.cumsum(axis=1)  # number of values up to grid[i] in each resample
    sizes = below[:, -1]
    figures = {"mean": drawn @ np.bincount(block, weights=values, minlength=blocks) / sizes}
    for name, share in PERCENTILES.items():
        if name in names and _beyond(n, share) >= BEYOND:
            figures[name] = grid[(below > share * (sizes[:, None] - 1)).argmax(axis=1)]
    tail = (1 - CONFIDENCE) / 2
    intervals = {name: np.quantile(values, [tail, 1 - tail]) for name, values in figures.items()}
    return {name: (float(low), float(high)) for name, (low, high) in intervals.items()}


def mean_of_runs(values: Sequence[float]) -> Estimate:
    """Return the mean over repeats and its interval; no interval for a single one.

    Geometric mean and Student's t of the logarithms, because runs differ by factors; arithmetic if a value is zero.
    """
    from scipy.special import stdtrit

    runs = np.asarray(values, dtype=np.float64)
    positive = bool((runs > 0).all())
    scaled = np.log(runs) if positive else runs
    back = np.exp if positive else np.asarray
    mean = scaled.mean()
    if len(runs) < 2:
        return Estimate(float(runs[0]))
    reach = stdtrit(len(runs) - 1, (1 + CONFIDENCE) / 2) * scaled.std(ddof=1) / np.sqrt(len(runs))
    return Estimate(*(float(back(one)) for one in (mean, mean - reach, mean + reach)))


def rate_interval(ends: Values, seconds: float, rate: float) -> Estimate:
    """Return the rate of one run with its interval, by Student's t over equal pieces of the time.

    Args:
        ends: time of each answer in seconds since the start, shape (n,).
        seconds: measured duration.
        rate: answers per second.
    """
    pieces = min(RATE_PIECES, len(ends) // BEYOND)
    if pieces < MIN_BLOCKS:
        return Estimate(rate)
    counts, _ = np.histogram(ends, pieces, (0.0, seconds))
    around = mean_of_runs((counts * (pieces / seconds)).tolist())
    assert around.low is not None
    assert around.high is not None
    return Estimate(rate, rate + around.low - around.value, rate + around.high - around.value)


def latency_histogram(values: Values, bins: int = 60) -> dict[str, list[float]]:
    """Return counts between edges that grow by a constant factor: ``{"edges": bins + 1 values, "counts": bins}``."""
    positive = values[values > 0]
    if not len(positive):
        return {"edges": [], "counts": []}
    low, high = float(positive.min()), float(positive.max())
    edges = np.geomspace(low, max(high, low * 1.001), bins + 1)
    edges[0], edges[-1] = low, max(high, low * 1.001)  # despite rounding
    counts, _ = np.histogram(positive, edges)
    return {"edges": np.round(edges, 4).tolist(), "counts": counts.tolist()}


def batch_histogram(sizes: Values) -> list[dict[str, Any]]:
    """Return the number of requests and of batches of each batch size.

    Args:
        sizes: the batch size of each request, shape (n,); NaN if unknown.
    """
    known, counts = np.unique(sizes[~np.isnan(sizes)], return_counts=True)
    return [
        {"size": int(size), "requests": int(count), "batches": round(float(count / size), 2)}
        for size, count in zip(known, counts, strict=True)
    ]
