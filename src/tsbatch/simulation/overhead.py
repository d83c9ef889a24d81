"""What TorchServe itself cost in a load test.

While requests wait, a worker begins its next batch as soon as TorchServe lets it. What passes from the end of one
handler call to the hand-over for the next is ``batch + request × n``; whatever else the latency holds is the frontend's
and the network's::

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
"""Taken where nobody measured it. TorchServe 0.12 on two cores (AMD EPYC) needed, from the end of a full batch to the
hand-over of the next: 1.2 to 1.6 ms with batches of 1 of a model that slept for 4 ms; 1.9 ms with 1, 2.3 with 4, 2.9
with 8, 3.9 with 16 and 5.1 with 32 of one that slept for 20 + 2 n ms."""

FEWEST: Final = 10
"""Observations from which a figure of its own is made."""

USUAL: Final = 0.99
"""Share of the batches that tell what passes between them; the slowest are taken for accidents. Of the others the mean
counts: what takes long now and then makes all wait who come after it."""

SOON: Final = 2.0
"""Ms after its batch within which a worker is free, unless something went wrong."""

JITTER: Final = 0.5
"""Ms by which a request may be sent later than it is said to be: its worker then seems to be free as much too early."""


def overhead_of(samples: Samples, batch_size: int | None, workers: int | None = None) -> Overhead:
    """What TorchServe cost in a load test, as far as it shows; :data:`TYPICAL` where it does not.

    Args:
        samples: its requests.
        batch_size: what fitted into a batch; None when nobody knows, so that none is known to have been full.
        workers: how many there were; None when nobody knows.
    """
    known = samples.where(~np.isnan(samples.queue + samples.assembly + samples.handler + samples.batch))
    batches = _Batches(known, batch_size, workers) if batch_size and len(known) else None
    between = batches.between() if batches else None
    batch, request = TYPICAL.batch, TYPICAL.request
    if batches and between is not None:
        # Full batches have one size, which cannot tell what is the batch's from what is its requests': shared as usual.
        request = round(TYPICAL.request * between / TYPICAL.of_batch(batches.size), 4)
        batch = between - request * batches.size
    good, frontend = known.where(known.ok), TYPICAL.frontend
    if len(good) >= FEWEST:
        # The simulator hands a batch over at once, so that what precedes the hand-over is added to every request: those
        # who wait behind it are later by as much.
        before = batches.before(batch) if batches else batch / 2
        after = good.latency - good.queue - good.assembly - good.handler - request * (good.batch + 1) / 2
        frontend = float(np.median(after)) - batch + before
    return Overhead(frontend=round(max(0.0, frontend), 3), batch=round(batch, 4), request=request)


class _Batches:
    """The batches of a load test, and which of them were full, with all their requests known.

    Attributes:
        size: requests in a full one.
        table: all batches.
        full: which are full, shape (b,).
        waited: how long the last request of each was in the queue, ms, shape (b,).
        joined: how long it then waited for the hand-over, ms, shape (b,).
    """

    def __init__(self, known: Samples, size: int, workers: int | None) -> None:
        self.size, self.table, self._workers = size, batches_of(known), workers
        count, number = len(self.table), batch_numbers(known)
        self.full = (self.table.size == size) & (np.bincount(number, minlength=count) == size)
        self.waited, self.joined = np.full(count, np.inf), np.full(count, np.inf)
        np.minimum.at(self.waited, number, known.queue)
        np.minimum.at(self.joined, number, known.assembly)

    def way_in(self) -> float | None:
        """Ms from a request to the hand-over, where it filled the batch of a worker that was free; None: too few."""
        joined = self.joined[self.full & (self.waited == 0)]
        return float(np.median(joined)) if len(joined) >= FEWEST else None

    def before(self, batch: float) -> float:
        """The same, or what is taken for it: half of ``batch``, but no more than what passes once a worker is free."""
        known, held = self.way_in(), self.table.held[self.full & (self.waited > 0)]
        if known is not None:
            return known
        return min(batch / 2, float(np.median(held))) if len(held) else batch / 2

    def between(self) -> float | None:
        """Ms from the end of a batch's handler to the next hand-over, where all of the next one's requests had waited.

        None: too few. Whoever waited no longer than the way in takes may have come when the worker was free. Where too
        few tell when their worker was free, only what passes from then on counts, which is somewhat too little.
        """
        chosen = self.full & (self.waited > (self.way_in() or 0.0))
        held, since = self.table.held[chosen], self._since()[chosen]
        if len(held) < FEWEST:
            return None
        told = since[~np.isnan(since)]
        return _usual(held) + (max(0.0, _usual(told)) if len(told) >= FEWEST else 0.0)

    def _since(self) -> Column:
        """Ms from the end of a batch's handler to when its worker was free for this one, shape (b,).

        In it the worker writes its figures, and no answer tells of it. NaN: not known. Where workers are told, all
        their batches are expected to be there. Elsewhere it is known where just one batch ended about then; batches of
        other clients may make that another worker's, which is wrong by less than :data:`SOON`.
        """
        table = self.table
        free, ends = table.handed_over - table.held, table.handed_over + table.handler
        since = np.full(len(table), np.nan)
        told = not np.isnan(table.worker).any()
        if told or self._workers == 1:
            for worker in np.unique(np.nan_to_num(table.worker)):
                rows = np.flatnonzero(np.nan_to_num(table.worker) == worker)
                since[rows[1:]] = free[rows[1:]] - ends[rows[:-1]]
            return since if told else np.where(np.abs(since) <= SOON, since, np.nan)
        by_time = np.sort(ends)
        first, beyond = np.searchsorted(by_time, free - SOON), np.searchsorted(by_time, free + JITTER)
        alone = beyond - first == 1
        since[alone] = free[alone] - by_time[first[alone]]
        return since


def _usual(values: Column) -> float:
    return float(values[values <= np.quantile(values, USUAL)].mean())
