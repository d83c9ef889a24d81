"""Fit a service time to measurements: the result of a load test, or of a check.

Each batch of a load test is one observation: its items, the length of its requests and its handler time. TorchServe's
own time is fitted separately (:mod:`tsbatch.simulation.overhead`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from tsbatch.bench.request_table import Column
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.diagnosis.batch_table import batch_numbers, batches_of
from tsbatch.errors import UsageError
from tsbatch.simulation.batching_rules import MAX_WITHOUT_DELAY
from tsbatch.simulation.overhead import MIN_OBSERVATIONS, TYPICAL, overhead_of
from tsbatch.simulation.service_time import KIND, MIN_TIME, SPREADS, Machine, ServiceTime

MIN_EXPLAINED: Final = 0.1
"""Share of the variance that the length must explain to count."""


def read_service(path: Path) -> ServiceTime:
    """Read the service time of a file.

    Args:
        path: written by :meth:`ServiceTime.save`, ``tsbatch bench --output`` or ``tsbatch check --json``.

    Raises:
        UsageError: it holds no service time.
        OSError: it cannot be read.
    """
    try:
        value = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}") from None
    if isinstance(value, dict) and value.get("kind") == KIND:
        return ServiceTime.from_json(value, str(path))
    if isinstance(value, dict) and "kind" not in value and "service" in value:
        return of_check(value, str(path))
    return of_bench(BenchResult.load(path), str(path))


def of_check(report: Mapping[str, Any], source: str) -> ServiceTime:
    """Convert the output of ``tsbatch check --json``: a median for each batch size, and the slowest repeat.

    Raises:
        UsageError: it holds no times.
    """
    rows = report["service"]
    if not rows:
        raise UsageError(f"{source} has no service times; run the check with --data")
    factors = [factor for row in rows for factor in [1.0] * (row["repeats"] - 1) + [row["slowest"] / row["seconds"]]]
    mean = float(np.mean(factors))
    return ServiceTime(
        sizes=[row["batch"] for row in rows],
        times=[row["seconds"] * 1000 * mean for row in rows],
        spread=_thinned(np.array(factors) / mean),
        overhead=TYPICAL,
        machine=Machine(workers=1),
        source=source,
    )


def of_bench(result: BenchResult, source: str = "") -> ServiceTime:
    """Fit every batch of every run of a load test.

    Raises:
        UsageError: the answers have no handler times.
    """
    parts = [_observe(run) for run in result.runs]
    table = _Batches(*(np.concatenate([getattr(one, name) for one in parts] or [np.empty(0)]) for name in COLUMNS))
    if not len(table.took):
        raise UsageError(f"{source or 'the result'} has no handler times; the answers need Server-Timing")
    extra = table.length - table.requests * (table.length.sum() / table.requests.sum())
    per_length = _slope(_around(table.items, extra), _around(table.items, table.took))
    # At the mean request length, whatever the lengths in the batches of one size.
    sizes, times = _by_size(table.items, table.took - per_length * extra)
    fitted = ServiceTime(sizes=sizes, times=times, machine=_machine(result), source=source or "a load test")
    factors = table.took / np.maximum(fitted.mean(table.items) + per_length * extra, MIN_TIME)
    return replace(
        fitted,
        spread=_thinned(factors / factors.mean()),
        per_length=per_length,
        items=_choices(result.samples.items, 1.0),
        lengths=_choices(result.samples.length, 0.0) if per_length else (0.0,),
        overhead=overhead_of(result.samples, _batch_size(result), fitted.machine.workers),
    )


@dataclass(frozen=True, slots=True)
class _Batches:
    """Batches as columns of one length."""

    requests: Column
    items: Column
    length: Column
    took: Column


COLUMNS: Final = tuple(field.name for field in fields(_Batches))


def _observe(run: Run) -> _Batches:
    """Return the batches of one run whose requests are all known, with the sums over their requests."""
    samples = run.samples
    known = samples.where(~np.isnan(samples.queue + samples.assembly + samples.handler + samples.batch))
    table, number = batches_of(known), batch_numbers(known)
    members = np.bincount(number, minlength=len(table)) if len(known) else np.empty(0)
    whole = members == table.size
    items = _sums(number, known.items, 1.0, len(table))
    length = _sums(number, known.length, 0.0, len(table))
    return _Batches(table.size[whole], items[whole], length[whole], table.handler[whole])


def _sums(number: Any, values: Column, unknown: float, count: int) -> Column:
    weights = np.nan_to_num(values, nan=unknown)
    return np.bincount(number, weights=weights, minlength=count)[:count].astype(np.float64)


def _by_size(items: Column, took: Column) -> tuple[list[float], list[float]]:
    """Return the mean time by items, never falling; rarely seen sizes are left to interpolation."""
    sizes, index, counts = np.unique(items, return_inverse=True, return_counts=True)
    means = np.bincount(index, weights=took) / counts
    often = counts >= min(MIN_OBSERVATIONS, counts.max())
    return sizes[often].tolist(), _rising(means[often], counts[often])


def _around(items: Column, values: Column) -> Column:
    """Return the differences of values from the mean of those with the same number of items."""
    _, index, counts = np.unique(items, return_inverse=True, return_counts=True)
    around: Column = values - (np.bincount(index, weights=values) / counts)[index]
    return around


def _rising(values: Column, weights: Column) -> list[float]:
    """Return the nearest values that never fall (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, float(weight), 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            pool = ((before[0] * before[1] + pool[0] * pool[1]) / total, total, before[2] + pool[2])
        pools.append(pool)
    return [value for value, _, count in pools for _ in range(count)]


def _slope(extra: Column, left: Column) -> float:
    """Return the ms per unit of length if it explains enough of the variance that the size leaves; else 0."""
    if len(extra) < MIN_OBSERVATIONS or not extra.any() or not left.any():
        return 0.0
    slope = float(extra @ left / (extra @ extra))
    explained = 1 - float(((left - slope * extra) ** 2).sum() / (left**2).sum())
    return slope if slope > 0 and explained >= MIN_EXPLAINED else 0.0


def _choices(values: Column, unknown: float) -> Sequence[float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return (unknown,)
    return (known[0],) if known.min() == known.max() else _thinned(known)


def _thinned(factors: Column) -> list[float]:
    """Return at most :data:`SPREADS` quantiles with the same mean."""
    if len(factors) <= SPREADS:
        return list(factors)
    thin = np.quantile(factors, (np.arange(SPREADS) + 0.5) / SPREADS)
    return list(thin / thin.mean() * factors.mean())


def _batch_size(result: BenchResult) -> int | None:
    """Return the batch size limit from the server's description or its answers; None if neither has it."""
    settings = result.target.get("settings") or {}
    if size := settings.get("batchSize"):
        return int(size) if settings.get("maxBatchDelay", 1) > 0 else min(int(size), MAX_WITHOUT_DELAY)
    capacity = result.samples.capacity
    known = capacity[~np.isnan(capacity)]
    return int(np.median(known)) if len(known) else None


def _machine(result: BenchResult) -> Machine:
    from tsbatch.diagnosis.data_sources import known_of_result

    known = known_of_result(result, result.runs)
    return Machine(workers=known.workers, cores=known.cores, worker_cores=known.worker_cores)
