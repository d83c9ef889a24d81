"""Compute the figures that a diagnosis is based on from a table of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tsbatch.bench.request_table import WAITS, Column, Samples
from tsbatch.diagnosis.batch_table import BatchTable, batches_of
from tsbatch.diagnosis.model_facts import Known

CLOCKS_MS: Final = 1.0
"""TorchServe logs hand-overs in whole milliseconds."""

NO_WAIT_MS: Final = 2.0
"""A batch that was held for a shorter time did not wait."""

MIN_BATCHES: Final = 5
"""Minimum number of batches of a size for a conclusion about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Handler time of a batch of n requests: ``fixed + each * n`` ms, fitted to the observed batches."""

    fixed: float
    each: float

    def of(self, size: float) -> float:
        """Return the handler time of a batch of this size in ms."""
        return self.fixed + self.each * size


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Figures of one model under one load; times in ms, shares 0 to 1, None if unknown.

    Attributes:
        requests: number of requests; ``seconds`` their time span.
        rate: good answers per second.
        failed: share without a good answer; ``refused``: share answered with 503 before any worker (queue full).
        queue, assembly, handler, outside, latency: means over the good answers.
        workers: number of workers, known or seen.
        busy: mean share of the time that a worker was in its handler.
        at_once: mean number of batches in the handler while any was.
        in_flight: mean number of requests in flight; ``alone``: share that met no other request.
        batch: mean requests per batch; ``largest``: maximum.
        batch_size, delay: batchSize and maxBatchDelay, known or derived from the batches.
        full, held: share of full batches; median time that the others were held.
        cost: handler time of a batch by its size.
    """

    requests: int
    seconds: float
    rate: float
    failed: float
    refused: float
    queue: float
    assembly: float
    handler: float
    outside: float
    latency: float
    workers: int
    busy: float
    at_once: float | None = None
    in_flight: float
    alone: float | None = None
    batch: float | None = None
    largest: int | None = None
    batch_size: int | None = None
    delay: float | None = None
    full: float | None = None
    held: float | None = None
    cost: Cost | None = None

    def share(self, part: str) -> float:
        """Return a part's share of the mean latency."""
        value: float = getattr(self, part)
        return value / self.latency if self.latency else 0.0


def evidence_of(samples: Samples, known: Known, *, seconds: float | None = None, share: float = 1.0) -> Evidence:
    """Compute the figures of these requests.

    Args:
        samples: the requests, at least one.
        known: facts in addition to them.
        seconds: time span, if the requests are only a sample.
        share: share of all requests that they are.
    """
    good = samples.where(samples.ok & ~np.isnan(samples.handler))
    ends = samples.sent + samples.latency / 1000
    span = seconds or max(1e-3, float(np.nanmax(ends) - samples.sent.min()))
    table = batches_of(samples)
    workers = known.workers or max(1, len(np.unique(samples.worker[~np.isnan(samples.worker)])))
    means = {name: _mean(getattr(good, name)) for name in (*WAITS, "latency")}
    refused = (samples.status == 503) & np.isnan(samples.handler)
    size, delay = _limits(table, samples, known)
    short = table.held[table.size < size] if size is not None else table.held
    return Evidence(
        requests=round(len(samples) / share),
        seconds=span,
        rate=len(good) / span / share,
        failed=1 - float(samples.ok.mean()),
        refused=float(refused.mean()),
        **means,
        outside=max(0.0, means["latency"] - sum(means[name] for name in WAITS)),
        workers=workers,
        busy=min(1.0, float(table.handler.sum()) / (span * 1000 * workers * share)),
        at_once=table.at_once,
        in_flight=float(np.nansum(samples.latency)) / (span * 1000 * share),
        alone=_alone(samples.sent, ends),
        batch=_mean(table.size),
        largest=int(table.size.max()) if len(table) else None,
        batch_size=size,
        delay=delay,
        full=float((table.size >= size).mean()) if len(table) and size is not None else 0.0,
        held=float(np.median(short)) if len(short) else None,
        cost=_cost(table),
    )


def _mean(values: Column) -> float:
    return float(np.nanmean(values)) if len(values) and not np.isnan(values).all() else 0.0


def _alone(sent: Column, ends: Column) -> float:
    # In flight at an arrival: requests sent before it minus requests answered before it.
    order = np.sort(sent)
    answered = np.searchsorted(np.sort(ends), order + CLOCKS_MS / 1000, side="right")
    return float((np.arange(len(order)) - answered <= 0).mean())


def _limits(table: BatchTable, samples: Samples, known: Known) -> tuple[int | None, float | None]:
    capacity = samples.capacity[~np.isnan(samples.capacity)]
    size = known.batch_size or (int(np.median(capacity)) if len(capacity) else None)
    seen_size, seen_delay = _seen_limits(table) if size is None else (size, _typical(table.held[table.size < size]))
    return seen_size, float(known.max_batch_delay) if known.max_batch_delay is not None else seen_delay


def _seen_limits(table: BatchTable) -> tuple[int | None, float | None]:
    """Derive batch size and delay from the batches; no size if even the largest batch left by timeout.

    A batch that is not full leaves when the delay is over, and never earlier (wlm/Model.java, pollBatch).
    """
    if not len(table):
        return None, None
    sizes, counts = np.unique(table.size, return_counts=True)
    # Two batches that look like one in the log exceed the real maximum; a frequent size is real.
    often = sizes[counts >= MIN_BATCHES]
    largest = (often if len(often) else sizes).max()
    delay = _typical(table.held[table.size < largest])
    held = table.held[table.size == largest]
    if delay is None:
        # All are of one size: either all were full, or all waited in vain for another request.
        low, middle = np.quantile(held, (0.1, 0.5))
        waited_out = len(held) >= MIN_BATCHES and low > NO_WAIT_MS and low > 0.8 * middle
        return (None, float(middle)) if waited_out else (int(largest), None)
    in_vain = delay > NO_WAIT_MS and float((held >= 0.9 * delay).mean()) > 0.5
    return (None if in_vain else int(largest)), delay


def _typical(held: Column) -> float | None:
    return float(np.quantile(held, 0.75)) if len(held) >= MIN_BATCHES else None


def _cost(table: BatchTable) -> Cost | None:
    sizes, counts = np.unique(table.size, return_counts=True)
    sizes, counts = sizes[counts >= MIN_BATCHES], counts[counts >= MIN_BATCHES]
    if len(sizes) < 2:
        return None
    medians = np.array([np.median(table.handler[table.size == size]) for size in sizes])
    each, fixed = np.polyfit(sizes, medians, 1, w=np.sqrt(counts))
    return Cost(fixed=max(0.0, float(fixed)), each=max(0.0, float(each)))
