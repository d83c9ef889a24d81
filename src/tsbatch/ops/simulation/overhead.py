"""What TorchServe itself cost in a load test.

A worker that has requests waiting begins its next batch as soon as TorchServe can: what passes between the two is
``batch + request × n``. What the latency holds besides is the frontend's, and the network's::

    ─ handler ─│─ since ─│─ held ─│─ handler ─
             ended     free    handed over
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tsbatch.ops.diagnosis.batch_table import batch_numbers, batches_of
from tsbatch.ops.measure.samples import Column, Samples
from tsbatch.ops.simulation.rules import Overhead

TYPICAL: Final = Overhead(frontend=0.6, batch=1.2, request=0.13)
"""Taken where nobody measured it. TorchServe 0.12 cost on two cores (AMD EPYC) 1.2 to 1.6 ms a cycle of batches of 1 of
a model that slept for 4 ms; of one that slept for 20 + 2 n ms 1.9 of 1, 2.3 of 4, 2.9 of 8, 3.9 of 16 and 5.1 of 32."""

FEWEST: Final = 10
"""Observations from which a figure of its own is made."""

USUAL: Final = 0.99
"""Share of the batches that tell what passes between them; the slowest are taken for accidents. Of the others the mean
counts: what takes long now and then makes all wait who come after it."""

SOON: Final = 2.0
"""Ms after its batch within which a worker is free, unless something went wrong."""

JITTER: Final = 0.5
"""Ms by which a request may be sent later than it is said to be, which makes its worker free as much earlier."""


def overhead_of(samples: Samples, batch_size: int | None) -> Overhead:
    """What TorchServe cost in a load test, as far as it shows; :data:`TYPICAL` where it does not.

    Args:
        samples: its requests.
        batch_size: what fitted into a batch; None when nobody knows, so that none is known to have been full.
    """
    known = samples.where(~np.isnan(samples.queue + samples.assembly + samples.handler + samples.batch))
    full = _Full(known, batch_size) if batch_size and len(known) else None
    cycle = full.between_batches() if full else None
    batch, request = TYPICAL.batch, TYPICAL.request
    if full and cycle is not None:
        # Full batches have one size, which cannot tell what is the batch's from what is its requests': shared as usual.
        request = round(TYPICAL.request * cycle / TYPICAL.of_batch(full.size), 4)
        batch = cycle - request * full.size
    good, frontend = known.where(known.ok), TYPICAL.frontend
    if len(good) >= FEWEST:
        # What precedes the hand-over shows where the last of a batch waited for nobody; elsewhere half is taken for it.
        # Simulated batches are handed over without it, so that those who wait behind them need it as well.
        before = full.way_in() if full else None
        after = good.latency - good.queue - good.assembly - good.handler - request * (good.batch + 1) / 2
        frontend = float(np.median(after)) - batch + (batch / 2 if before is None else before)
    return Overhead(frontend=round(max(0.0, frontend), 3), batch=round(batch, 4), request=request)


class _Full:
    """The batches of a load test that were full and all of whose requests are known.

    Attributes:
        size: requests in one.
        table: all batches, full or not.
        full: which ones these are, shape (b,).
        waited: how long each one's last request was in the queue, ms, shape (b,).
        joined: how long it then waited for the hand-over, ms, shape (b,).
    """

    def __init__(self, known: Samples, size: int) -> None:
        self.size, self.table = size, batches_of(known)
        count, number = len(self.table), batch_numbers(known)
        self.full = (self.table.size >= size) & (np.bincount(number, minlength=count) == self.table.size)
        self.waited, self.joined = np.full(count, np.inf), np.full(count, np.inf)
        np.minimum.at(self.waited, number, known.queue)
        np.minimum.at(self.joined, number, known.assembly)

    def way_in(self) -> float | None:
        """Ms from a request to the hand-over, where it filled the batch of a worker that was free; None: too few."""
        joined = self.joined[self.full & (self.waited == 0)]
        return float(np.median(joined)) if len(joined) >= FEWEST else None

    def between_batches(self) -> float | None:
        """Ms from the end of a batch's handler to the next hand-over, where all of the next one's requests had waited.

        None: too few. Whoever waited no longer than the way in takes may have come when the worker was free.
        """
        chosen = self.full & (self.waited > (self.way_in() or 0.0))
        held, since = self.table.held[chosen], self._since()[chosen]
        if len(held) < FEWEST:
            return None
        told = since[~np.isnan(since)]
        return _usual(held) + (max(0.0, _usual(told)) if len(told) >= FEWEST else 0.0)

    def _since(self) -> Column:
        """Ms from the end of a batch's handler to when its worker was free for this one, shape (b,).

        In it the worker writes its figures, and no answer tells of it. Where nobody said whose a batch was, it is known
        where just one batch ended about then. NaN: not known.
        """
        table = self.table
        free, ends = table.handed_over - table.held, table.handed_over + table.handler
        since = np.full(len(table), np.nan)
        if not np.isnan(table.worker).any():
            for worker in np.unique(table.worker):
                rows = np.flatnonzero(table.worker == worker)
                since[rows[1:]] = free[rows[1:]] - ends[rows[:-1]]
            return since
        by_time = np.sort(ends)
        first, beyond = np.searchsorted(by_time, free - SOON), np.searchsorted(by_time, free + JITTER)
        alone = beyond - first == 1
        since[alone] = free[alone] - by_time[first[alone]]
        return since


def _usual(values: Column) -> float:
    return float(values[values <= np.quantile(values, USUAL)].mean())
