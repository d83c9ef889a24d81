"""Live status of the models on a running server, for ``tsbatch top``.

Workers, their memory and the queue length come from the management API; the rest from the new lines of ``ts_log.log``
or, if the log is not readable, from the growth of the sums at the Prometheus address.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tsbatch.bench.request_table import WAITS
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.model_log import ModelLog
from tsbatch.diagnosis.prometheus import Scrape, between
from tsbatch.diagnosis.server_facts import private_memory
from tsbatch.diagnosis.ts_log import LogReader
from tsbatch.errors import UsageError
from tsbatch.serving.management_client import Management, ready_workers
from tsbatch.serving.worker_log import SERVER_LOG, Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One version of a model over the last interval; times in ms, None if unknown.

    Attributes:
        model, version: the model.
        rate: good answers per second.
        failed: share of failed requests, 0 to 1.
        batch, batch_size: mean and maximum requests per batch.
        waiting, places: length and capacity of the queue.
        queue, assembly, handler, latency: means.
        p99: P99 of the latency.
        ready, wanted: number of workers.
        memory: private memory of all workers, bytes; None if they run on another machine.
    """

    model: str
    version: str
    rate: float | None = None
    failed: float | None = None
    batch: float | None = None
    batch_size: int
    waiting: int | None = None
    places: int | None = None
    queue: float | None = None
    assembly: float | None = None
    handler: float | None = None
    latency: float | None = None
    p99: float | None = None
    ready: int
    wanted: int
    memory: int | None = None


class LogTail:
    """The requests in a growing ``ts_log.log``, interval by interval.

    Args:
        folder: the server's log folder.
    """

    def __init__(self, folder: Path) -> None:
        self._tail = Tail(folder / SERVER_LOG)
        self._tail.skip()
        self._reader = LogReader()

    def take(self) -> dict[tuple[str, str], ModelLog]:
        """Return the new requests by model and version."""
        self._reader.feed([line.encode() for line in self._tail.lines()])
        return {(log.name, log.version): log for log in self._reader.take()}


class Top:
    """Observes a server repeatedly.

    Args:
        management: its management API.
        log: its log, if readable.
        scrape: reads its Prometheus address, for servers whose log is not readable.
        clock: seconds.
    """

    def __init__(
        self,
        management: Management,
        *,
        log: LogTail | None = None,
        scrape: Callable[[], Scrape] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._management = management
        self._log = log
        self._scrape = scrape
        self._clock = clock
        self._since = clock()
        self._before = scrape() if scrape else None

    def look(self, model: str | None = None) -> list[Row]:
        """Return every version of all models, or of one, over the interval since the last call.

        Raises:
            ModelNotFound: the server has no such model.
            ServerError: the server is unreachable or fails.
        """
        described = list(self._management.every_version() if model is None else self._management.versions(model))
        now = self._clock()
        seconds, self._since = max(1e-3, now - self._since), now
        if self._log:
            figures = {key: _figures(log, seconds) for key, log in self._log.take().items()}
        else:
            figures = self._of_metrics(described)
        return [self._row(one, figures.get((one["modelName"], one["modelVersion"]), {})) for one in described]

    def _row(self, model: Mapping[str, Any], figures: Mapping[str, Any]) -> Row:
        known = Known.of_described(model)
        queue = model.get("jobQueueStatus") or {}
        return Row(
            model=model["modelName"],
            version=model["modelVersion"],
            batch_size=model["batchSize"],
            waiting=queue.get("pendingRequests"),
            places=known.queue_size,
            ready=ready_workers(model),
            wanted=model["minWorkers"],
            memory=_memory(model) if self._management.is_local else None,
            **figures,
        )

    def _of_metrics(self, described: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
        if self._scrape is None or self._before is None:
            return {}
        before, self._before = self._before, self._scrape()
        found = {}
        for model in described:
            with contextlib.suppress(UsageError):  # it received no requests
                known = Known.of_described(model)
                evidence = between(before, self._before, model=model["modelName"], known=known).evidence
                # The sums are labelled with the version of the address, which usually has none.
                figures = {name: getattr(evidence, name) for name in ("rate", "batch", *WAITS, "latency")}
                found[model["modelName"], model["modelVersion"]] = figures
        return found


def _figures(log: ModelLog, seconds: float) -> dict[str, Any]:
    samples = log.samples()
    good = samples.where(samples.ok)
    figures: dict[str, Any] = {
        "rate": len(good) / seconds,
        "failed": 1 - len(good) / len(samples),
        "batch": (log.requests - log.refused) / log.batches if log.batches else None,
    }
    if len(good):
        figures |= {name: float(getattr(good, name).mean()) for name in (*WAITS, "latency")}
        figures["p99"] = float(np.quantile(good.latency, 0.99))
    return figures


def _memory(model: Mapping[str, Any]) -> int | None:
    total = 0
    for worker in model["workers"]:
        with contextlib.suppress(psutil.Error, KeyError):
            total += private_memory(psutil.Process(worker["pid"]))
    return total or None
