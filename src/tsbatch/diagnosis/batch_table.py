"""Reconstruct the batches from a table of requests."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np

from tsbatch.bench.request_table import Column, Samples

SAME_BATCH_MS: Final = 1.0
"""Closer hand-overs belong to one batch: clock and rounding errors are smaller, gaps between batches larger."""


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Batches as columns of one length b, ordered by hand-over; times in ms, ``handed_over`` since the epoch.

    Attributes:
        size: number of requests.
        handed_over: when the batch was complete.
        held: assembly time, since a worker took the first request.
        handler: handler time.
        worker: number of the worker, NaN if unknown.
    """

    size: Column
    handed_over: Column
    held: Column
    handler: Column
    worker: Column

    def __len__(self) -> int:
        return len(self.size)

    @property
    def at_once(self) -> float:
        """Mean number of batches in the handler while any was; 0 without batches."""
        if not len(self):
            return 0.0
        begins, ends = self.handed_over, np.maximum.accumulate(self.handed_over + self.handler)
        gaps = np.maximum(0.0, begins[1:] - ends[:-1]).sum()
        busy = ends[-1] - begins[0] - gaps
        return float(self.handler.sum() / busy) if busy > 0 else 1.0


def batches_of(samples: Samples) -> BatchTable:
    """Return the batches of these requests, without those whose latency breakdown is unknown.

    Requests of a batch share its size, its handler time and the time of the hand-over (arrival, queue wait and assembly
    wait added up).
    """
    known = ~np.isnan(samples.queue + samples.assembly + samples.handler + samples.batch)
    rows = samples.where(known)
    handed_over = rows.sent * 1000 + rows.queue + rows.assembly
    order = np.lexsort((handed_over, rows.handler, rows.batch))
    size, handler = rows.batch[order], rows.handler[order]
    same = (np.diff(size) == 0) & (np.diff(handler) == 0) & (np.diff(handed_over[order]) <= SAME_BATCH_MS)
    starts = np.flatnonzero(np.concatenate(([True], ~same))) if len(order) else order
    first = order[starts]
    held = np.maximum.reduceat(rows.assembly[order], starts) if len(starts) else np.empty(0)
    begin = handed_over[first]
    by_time = np.argsort(begin, kind="stable")
    return BatchTable(
        size=rows.batch[first][by_time],
        handed_over=begin[by_time],
        held=held[by_time],
        handler=rows.handler[first][by_time],
        worker=rows.worker[first][by_time],
    )


def batch_numbers(samples: Samples) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return each request's row in :func:`batches_of` of the same samples, shape (n,); all breakdowns must be known."""
    table = batches_of(samples)
    handed = samples.sent * 1000 + samples.queue + samples.assembly
    # Batches of equal size and handler time are in time order, so the last one begun before the request is its batch.
    order = np.lexsort((table.handed_over, table.handler, table.size))
    keys = [(table.size[row], table.handler[row], table.handed_over[row]) for row in order]
    rows = zip(samples.batch.tolist(), samples.handler.tolist(), (handed + 1e-6).tolist(), strict=True)
    return order[np.array([bisect_right(keys, key) - 1 for key in rows], dtype=np.intp)]
