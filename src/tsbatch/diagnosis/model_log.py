"""What a log tells of one model, in bounded memory: exact counts, and the requests or a fair sample of them."""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from typing import Final

import numpy as np

from tsbatch.bench.request_table import Samples
from tsbatch.diagnosis.log_batches import Batch, Refused

MOST_REQUESTS: Final = 100_000
"""So many requests are kept at most; 100,000 make a P99 right to 0.1 of a percentile (three standard errors)."""

STRETCH: Final = 512
"""Batches that are kept or left out together: neighbours tell who waited for whom and how many were on their way."""

COLUMNS: Final = ("sent", "latency", "status", "queue", "assembly", "handler", "batch", "worker")


class ModelLog:
    """One version of a model, as its batches come in.

    Args:
        name: the model.
        version: its version.
        most: how many requests are kept.

    Attributes:
        requests, refused, batches: exact counts.
        statuses: requests by HTTP status, exact.
        first, last: first arrival and last answer, ms since the epoch.
        share: of the stretches of the log, how many are kept; 1 when all are.
        workers: the threads that answered, each with its number.
    """

    def __init__(self, name: str, version: str, *, most: int = MOST_REQUESTS) -> None:
        self.name, self.version = name, version
        self.requests = self.refused = self.batches = 0
        self.statuses: Counter[int] = Counter()
        self.first, self.last = math.inf, -math.inf
        self.share = 1.0
        self.workers: dict[str, int] = {}
        self._most = most
        self._random = random.Random(0)
        self._ticket = 0.0
        self._columns = {name: array("d") for name in (*COLUMNS, "ticket")}

    @property
    def seconds(self) -> float:
        """From the first arrival to the last answer."""
        return max(0.0, self.last - self.first) / 1000 if self.requests else 0.0

    def add(self, batch: Batch) -> None:
        """One more batch."""
        if self.batches % STRETCH == 0:
            self._ticket = self._random.random()
        self.batches += 1
        self.requests += len(batch.jobs)
        self.statuses.update(job.status for job in batch.jobs)
        waited = max(job.waited for job in batch.jobs)
        self._see(batch.flushed - waited, batch.ended)
        worker = self.workers.setdefault(batch.worker, len(self.workers))
        if self._ticket < self.share:
            self._keep(batch, worker)

    def _keep(self, batch: Batch, worker: int) -> None:
        size = len(batch.jobs)
        handler = batch.in_handler
        for job in batch.jobs:
            queue, assembly = batch.waits(job)
            sent = (batch.flushed - job.waited) / 1000
            self._row(sent, job.waited + job.took, job.status, queue, assembly, handler, size, worker)

    def refuse(self, refused: Refused) -> None:
        """One more request that no worker got."""
        self.requests += 1
        self.refused += 1
        self.statuses[refused.status] += 1
        begin = refused.at - refused.took
        self._see(begin, refused.at)
        if self._ticket < self.share:
            nothing = math.nan
            self._row(begin / 1000, refused.took, refused.status, nothing, nothing, nothing, nothing, nothing)

    def samples(self) -> Samples:
        """The requests that were kept, ordered by arrival."""
        columns = {name: np.frombuffer(self._columns[name], dtype=np.float64) for name in COLUMNS}
        order = np.argsort(columns["sent"], kind="stable")
        return Samples(**{name: values[order] for name, values in columns.items()})

    def _see(self, begin: float, end: float) -> None:
        self.first, self.last = min(self.first, begin), max(self.last, end)

    def _row(self, *values: float) -> None:
        for column, value in zip(self._columns.values(), (*values, self._ticket), strict=True):
            column.append(value)
        if len(self._columns["sent"]) > self._most:
            self._thin()

    def _thin(self) -> None:
        tickets = np.array(self._columns["ticket"])
        while np.count_nonzero(tickets < self.share) > self._most * 3 // 4:
            self.share /= 2
        keep = tickets < self.share
        for name, column in self._columns.items():
            self._columns[name] = array("d", np.array(column)[keep].tobytes())
