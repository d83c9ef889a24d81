"""Fit TorchServe's own time in a load test.

While requests wait, a worker begins its next batch as soon as TorchServe lets it. The time from the end of one handler
call to the hand-over of the next batch is ``batch + request × n``; the rest of the latency is that of the frontend and
the network::

    ─ handler ─│─ since ─│─ held ─│─ handler ─
             ended     free    handed over
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tsbatch.bench.request_table import Column, Samples
from tsbatch.diagnosis.batch_table import batch_numbers, batches_of
from tsbatch.simulation.batching_rules import Overhead

TYPICAL: Final = Overhead(frontend=0.6, batch=1.2, request=0.13)
"""Used without a measurement. TorchServe 0.12 on two cores (AMD EPYC) needed, from the end of a full batch to the
hand-over of the next: 1.2 to 1.6 ms with batches of 1 of a model that slept for 4 ms; 1.9 ms with 1, 2.3 with 4, 2.9
with 8, 3.9 with 16 and 5.1 with 32 of one that slept for 20 + 2 n ms."""

MIN_OBSERVATIONS: Final = 10
"""Minimum number of observations for a figure."""

USUAL: Final = 0.99
"""Share of the batches that count; the slowest are treated as outliers. The mean of the others counts, because an
occasional delay makes all later requests wait."""

SOON: Final = 2.0
"""Ms after its batch within which a worker is normally free."""

JITTER: Final = 0.5
"""Ms by which a request may be sent later than recorded: its worker then seems to be free too early by as much."""


def overhead_of(samples: Samples, batch_size: int | None, workers: int | None = None) -> Overhead:
    """Return TorchServe's own time in a load test; :data:`TYPICAL` for what it does not show.

    Args:
        samples: its requests.
        batch_size: maximum batch size; None if unknown, so that no batch is known to have been full.
        workers: number of workers; None if unknown.
    """
    known = samples.where(~np.isnan(samples.queue + samples.assembly + samples.handler + samples.batch))
    batches = _Batches(known, batch_size, workers) if batch_size and len(known) else None
    between = batches.between() if batches else None
    batch, request = TYPICAL.batch, TYPICAL.request
    if batches and between is not None:
        # Full batches have one size, which cannot separate the batch's part from its requests': split as in TYPICAL.
        request = round(TYPICAL.request * between / TYPICAL.of_batch(batches.size), 4)
        batch = between - request * batches.size
    good, frontend = known.where(known.ok), TYPICAL.frontend
    if len(good) >= MIN_OBSERVATIONS:
        # The simulator hands a batch over at once, so the time before the hand-over is added to every request: those
        # that wait behind it are later by as much.
        before = batches.before(batch) if batches else batch / 2
        after = good.latency - good.queue - good.assembly - good.handler - request * (good.batch + 1) / 2
        frontend = float(np.median(after)) - batch + before
    return Overhead(frontend=round(max(0.0, frontend), 3), batch=round(batch, 4), request=request)


class _Batches:
    """The batches of a load test, and which of them were full with all requests known.

    Attributes:
        size: number of requests in a full batch.
        table: all batches.
        full: which are full, shape (b,).
        waited: ms that the last request of each was in the queue, shape (b,).
        joined: ms that it then waited for the hand-over, shape (b,).
    """

    def __init__(self, known: Samples, size: int, workers: int | None) -> None:
        self.size, self.table, self._workers = size, batches_of(known), workers
        count, number = len(self.table), batch_numbers(known)
        self.full = (self.table.size == size) & (np.bincount(number, minlength=count) == size)
        self.waited, self.joined = np.full(count, np.inf), np.full(count, np.inf)
        np.minimum.at(self.waited, number, known.queue)
        np.minimum.at(self.joined, number, known.assembly)

    def way_in(self) -> float | None:
        """Return the ms from a request that filled a waiting worker's batch to the hand-over; None: too few."""
        joined = self.joined[self.full & (self.waited == 0)]
        return float(np.median(joined)) if len(joined) >= MIN_OBSERVATIONS else None

    def before(self, batch: float) -> float:
        """Return the same, or an estimate: half of ``batch``, but no more than the time once a worker is free."""
        known, held = self.way_in(), self.table.held[self.full & (self.waited > 0)]
        if known is not None:
            return known
        return min(batch / 2, float(np.median(held))) if len(held) else batch / 2

    def between(self) -> float | None:
        """Return the ms from the end of a batch's handler to the next hand-over, if the next batch had waited.

        None: too few. A request that waited no longer than the way in may have arrived when the worker was free. If for
        too few it is known when their worker was free, only the time after that counts, which is slightly too short.
        """
        chosen = self.full & (self.waited > (self.way_in() or 0.0))
        held, since = self.table.held[chosen], self._since()[chosen]
        if len(held) < MIN_OBSERVATIONS:
            return None
        known = since[~np.isnan(since)]
        return _usual(held) + (max(0.0, _usual(known)) if len(known) >= MIN_OBSERVATIONS else 0.0)

    def _since(self) -> Column:
        """Return the ms from the end of a batch's handler until its worker was free for this one, shape (b,).

        In that time the worker writes its metrics, and no answer contains it. NaN: unknown. If the workers are known,
        all their batches are expected in the table. Otherwise it is known if just one batch ended about then; batches
        of other clients may make that another worker's, an error of less than :data:`SOON`.
        """
        table = self.table
        free, ends = table.handed_over - table.held, table.handed_over + table.handler
        since = np.full(len(table), np.nan)
        identified = not np.isnan(table.worker).any()
        if identified or self._workers == 1:
            for worker in np.unique(np.nan_to_num(table.worker)):
                rows = np.flatnonzero(np.nan_to_num(table.worker) == worker)
                since[rows[1:]] = free[rows[1:]] - ends[rows[:-1]]
            return since if identified else np.where(np.abs(since) <= SOON, since, np.nan)
        by_time = np.sort(ends)
        first, beyond = np.searchsorted(by_time, free - SOON), np.searchsorted(by_time, free + JITTER)
        alone = beyond - first == 1
        since[alone] = free[alone] - by_time[first[alone]]
        return since


def _usual(values: Column) -> float:
    return float(values[values <= np.quantile(values, USUAL)].mean())
