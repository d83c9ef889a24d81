"""Pure functions from numbers to figures: percentiles and how sure they are, goodput, histograms.

Latencies of one run are not independent: a slow moment hits many requests in a row. So intervals come from a bootstrap
over blocks of the run, each many times as long as the waves in it. What no interval inside a run can see is that the
next run differs; that takes repeats.
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
MOST_BLOCKS: Final = 200
FEWEST_BLOCKS: Final = 10
"""With fewer blocks nobody knows how much they vary."""

TIMES_IN_BLOCK: Final = 10
"""A block is so many correlation times long; then blocks are all but independent."""

BEYOND: Final = 10
"""The least number of values beyond a percentile for which its interval can be told."""

RATE_PIECES: Final = 20
GRID: Final = 1024


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and the interval in which the true one lies, with :data:`CONFIDENCE`; None where it cannot be told."""

    value: float
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """As a JSON object."""
        return {name: None if value is None else round(value, 4) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, percentiles and maximum of values, with intervals.

    Attributes:
        figures: by the names ``mean``, those of :data:`PERCENTILES`, and ``max``; a percentile beyond which there is
            not even one value is left out.
        correlation: how many neighbours tell the same story (integrated autocorrelation time); 1 when independent.
        blocks: into how many the bootstrap cut them; 0 when they are too few for intervals.
    """

    figures: Mapping[str, Estimate]
    correlation: float = 1.0
    blocks: int = 0


def percentiles(values: Values) -> dict[str, float]:
    """Mean, percentiles and maximum of ``values``, shape (n,), interpolated as ``numpy.percentile`` does it.

    A percentile beyond which not even one value lies is left out; empty without values.
    """
    if not len(values):
        return {}
    known = {name: share for name, share in PERCENTILES.items() if _beyond(len(values), share) >= 1}
    figures = {name: float(np.quantile(values, share)) for name, share in known.items()}
    return {"mean": float(values.mean()), **figures, "max": float(values.max())}


def distribution(values: Values, seed: int = 0) -> Distribution:
    """Mean, percentiles and maximum of ``values``, shape (n,), in the order in which they were measured.

    Args:
        values: positive numbers.
        seed: of the bootstrap.
    """
    figures = percentiles(values)
    if not figures:
        return Distribution({})
    correlation = run_correlation(values)
    blocks = int(min(MOST_BLOCKS, len(values) / (TIMES_IN_BLOCK * correlation)))
    intervals = _bootstrap(values, blocks, list(figures), seed) if blocks >= FEWEST_BLOCKS else {}
    return Distribution(
        {name: Estimate(value, *intervals.get(name, (None, None))) for name, value in figures.items()},
        correlation,
        blocks if intervals else 0,
    )


def run_correlation(values: Values) -> float:
    """The correlation time of a run: the longer of that of its latencies and that of its slowest hundredth."""
    logarithms = np.log(np.maximum(values, 1e-9))
    slowest = (values > np.quantile(values, 0.99)).astype(np.float64)
    return max(correlation_time(logarithms), correlation_time(slowest))


def correlation_time(values: Values) -> float:
    """The integrated autocorrelation time of ``values``, shape (n,), in steps; 1 when they are independent.

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
    """Intervals of figures: blocks are drawn with replacement, as counts over a grid of order statistics."""
    n = len(values)
    block = np.arange(n) * blocks // n
    grid = _grid(values)
    place = np.searchsorted(grid, values)
    counts = np.bincount(block * len(grid) + place, minlength=blocks * len(grid)).reshape(blocks, -1)
    drawn = np.random.default_rng(seed).multinomial(blocks, np.full(blocks, 1 / blocks), RESAMPLES).astype(np.float64)
    below = drawn @ counts.cumsum(axis=1)  # how many values of each resample are at most grid[i]
    sizes = below[:, -1]
    figures = {"mean": drawn @ np.bincount(block, weights=values, minlength=blocks) / sizes}
    for name, share in PERCENTILES.items():
        if name in names and _beyond(n, share) >= BEYOND:
            figures[name] = grid[(below > share * (sizes[:, None] - 1)).argmax(axis=1)]
    tail = (1 - CONFIDENCE) / 2
    return {name: _pair(np.quantile(drawn, [tail, 1 - tail])) for name, drawn in figures.items()}


def _pair(values: Values) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def _grid(values: Values) -> Values:
    """Order statistics: evenly over the whole, and every one of the slowest."""
    ordered = np.sort(values)
    n = len(ordered)
    ranks = np.concatenate([np.linspace(0, n - 1, GRID).astype(int), np.arange(max(0, n - GRID), n)])
    return np.unique(ordered[ranks])


def mean_of_runs(values: Sequence[float]) -> Estimate:
    """The typical value over repeats and its interval; no interval for a single one.

    Geometric mean and Student's t of the logarithms, since runs differ by factors; of values with a zero among them the
    ordinary ones.
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
    """A rate inside one run, and its interval by Student's t over equal pieces of the time.

    Args:
        ends: when each answer came, in seconds since the beginning, shape (n,).
        seconds: how long was measured.
        rate: answers a second.
    """
    pieces = min(RATE_PIECES, len(ends) // BEYOND)
    if pieces < FEWEST_BLOCKS:
        return Estimate(rate)
    counts, _ = np.histogram(ends, pieces, (0.0, seconds))
    around = mean_of_runs((counts * (pieces / seconds)).tolist())
    assert around.low is not None
    assert around.high is not None
    return Estimate(rate, rate + around.low - around.value, rate + around.high - around.value)


def latency_histogram(values: Values, bins: int = 60) -> dict[str, list[float]]:
    """Counts between edges that grow by a constant factor: ``{"edges": bins + 1 of them, "counts": bins}``."""
    positive = values[values > 0]
    if not len(positive):
        return {"edges": [], "counts": []}
    low, high = float(positive.min()), float(positive.max())
    edges = np.geomspace(low, max(high, low * 1.001), bins + 1)
    edges[0], edges[-1] = low, max(high, low * 1.001)  # not lost to rounding
    counts, _ = np.histogram(positive, edges)
    return {"edges": np.round(edges, 4).tolist(), "counts": counts.tolist()}


def batch_histogram(sizes: Values) -> list[dict[str, Any]]:
    """How many requests travelled in batches of each size, and how many batches those were.

    Args:
        sizes: the batch size of each request, shape (n,); NaN where unknown.
    """
    known, counts = np.unique(sizes[~np.isnan(sizes)], return_counts=True)
    return [
        {"size": int(size), "requests": int(count), "batches": round(float(count / size), 2)}
        for size, count in zip(known, counts, strict=True)
    ]
