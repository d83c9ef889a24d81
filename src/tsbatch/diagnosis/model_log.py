"""The requests of one model in a log, in bounded memory: exact counts, and all requests or a fair sample."""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from typing import Final

import numpy as np

from tsbatch.bench.request_table import Samples
from tsbatch.diagnosis.log_batches import Batch, Refused

MAX_REQUESTS: Final = 100_000
"""Maximum number of requests kept; 100,000 give P99 within 0.1 of a percentile (three standard errors)."""

STRETCH: Final = 512
"""Consecutive batches that are kept or dropped together, since concurrency only shows among neighbours."""

COLUMNS: Final = ("sent", "latency", "status", "queue", "assembly", "handler", "batch", "worker")


class ModelLog:
    """One version of a model, filled batch by batch.

    Args:
        name: the model.
        version: its version.
        limit: maximum number of requests kept.

    Attributes:
        requests, refused, batches: exact counts.
        statuses: number of requests by HTTP status, exact.
        first, last: first arrival and last answer, ms since the epoch.
        share: share of the log's stretches that are kept, 0 to 1.
        workers: the threads that answered, and their numbers.
    """

    def __init__(self, name: str, version: str, *, limit: int = MAX_REQUESTS) -> None:
        self.name, self.version = name, version
        self.requests = self.refused = self.batches = 0
        self.statuses: Counter[int] = Counter()
        self.first, self.last = math.inf, -math.inf
        self.share = 1.0
        self.workers: dict[str, int] = {}
        self._limit = limit
        self._random = random.Random(0)
        self._ticket = 0.0
        self._columns = {name: array("d") for name in (*COLUMNS, "ticket")}

    @property
    def seconds(self) -> float:
        """Time from the first arrival to the last answer."""
        return max(0.0, self.last - self.first) / 1000 if self.requests else 0.0

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        if self.batches % STRETCH == 0:
            self._ticket = self._random.random()
        self.batches += 1
        self.requests += len(batch.jobs)
        self.statuses.update(job.status for job in batch.jobs)
        waited = max(job.waited for job in batch.jobs)
        self._see(batch.flushed - waited, batch.ended)
        worker = self.workers.setdefault(batch.worker, len(self.workers))
        if self._ticket < self.share:
            for job in batch.jobs:
                sent, latency = (batch.flushed - job.waited) / 1000, job.waited + job.took
                self._row(sent, latency, job.status, *batch.waits(job), batch.in_handler, len(batch.jobs), worker)

    def refuse(self, refused: Refused) -> None:
        """Add a request that no worker received."""
        self.requests += 1
        self.refused += 1
        self.statuses[refused.status] += 1
        begin = refused.at - refused.took
        self._see(begin, refused.at)
        if self._ticket < self.share:
            self._row(begin / 1000, refused.took, refused.status, *[math.nan] * 5)

    def samples(self) -> Samples:
        """Return the kept requests, ordered by arrival."""
        columns = {name: np.frombuffer(self._columns[name], dtype=np.float64) for name in COLUMNS}
        order = np.argsort(columns["sent"], kind="stable")
        return Samples(**{name: values[order] for name, values in columns.items()})

    def _see(self, begin: float, end: float) -> None:
        self.first, self.last = min(self.first, begin), max(self.last, end)

    def _row(self, *values: float) -> None:
        for column, value in zip(self._columns.values(), (*values, self._ticket), strict=True):
            column.append(value)
        if len(self._columns["sent"]) > self._limit:
            self._thin()

    def _thin(self) -> None:
        tickets = np.array(self._columns["ticket"])
        while np.count_nonzero(tickets < self.share) > self._limit * 3 // 4:
            self.share /= 2
        keep = tickets < self.share
        for name, column in self._columns.items():
            self._columns[name] = array("d", np.array(column)[keep].tobytes())
