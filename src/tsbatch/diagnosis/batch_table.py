"""The batches behind a table of requests, put together again from what each request tells of its own."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

import numpy as np

from tsbatch.bench.request_table import Column, Samples

SAME_BATCH_MS: Final = 1.0
"""Hand-overs that lie closer are one: clients' clocks and rounding differ by less, batches of a worker by more."""


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Batches as columns of one length b, ordered by hand-over; times in ms, ``handed_over`` since the epoch.

    Attributes:
        size: requests in it.
        handed_over: when it was complete.
        held: how long it was being assembled: from when a worker took its first request.
        handler: its handler time.
        worker: which worker's, NaN where nobody told.
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
        """How many batches were in the handler at once, on average while any was; 0 without batches."""
        if not len(self):
            return 0.0
        begins, ends = self.handed_over, np.maximum.accumulate(self.handed_over + self.handler)
        gaps = np.maximum(0.0, begins[1:] - ends[:-1]).sum()
        busy = ends[-1] - begins[0] - gaps
        return float(self.handler.sum() / busy) if busy > 0 else 1.0


def batches_of(samples: Samples) -> BatchTable:
    """The batches that these requests travelled in.

    Members of a batch share size, handler time and the moment of hand-over (arrival, queue wait and assembly wait
    summed up), so they are known by them. Requests whose split is unknown are left out.
    """
    known = ~np.isnan(samples.queue + samples.assembly + samples.handler + samples.batch)
    rows = samples.where(known)
    handed_over = rows.sent * 1000 + rows.queue + rows.assembly
    order = np.lexsort((handed_over, rows.handler, rows.batch))
    starts = _starts(rows.batch[order], rows.handler[order], handed_over[order])
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
    """For each request the row of its batch in :func:`batches_of` of the same samples, shape (n,); all splits known."""
    table = batches_of(samples)
    handed = samples.sent * 1000 + samples.queue + samples.assembly
    # Batches of one size that took exactly as long lie together in time order, so the last one begun before is ours.
    order = np.lexsort((table.handed_over, table.handler, table.size))
    keys = [(table.size[row], table.handler[row], table.handed_over[row]) for row in order]
    rows = zip(samples.batch.tolist(), samples.handler.tolist(), (handed + 1e-6).tolist(), strict=True)
    return order[np.array([bisect_right(keys, key) - 1 for key in rows], dtype=np.intp)]


def _starts(size: Column, handler: Column, handed_over: Column) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    # Where a new batch begins, in rows ordered by size, handler time and hand-over.
    if not len(size):
        return np.empty(0, dtype=np.intp)
    other = (np.diff(size) != 0) | (np.diff(handler) != 0) | (np.diff(handed_over) > SAME_BATCH_MS)
    return np.concatenate(([0], np.flatnonzero(other) + 1)).astype(np.intp)
