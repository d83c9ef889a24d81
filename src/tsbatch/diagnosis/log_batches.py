r"""Reconstruct the batches of each worker from TorchServe's ``ts_log.log``.

The log lines of one batch of two requests, without the lines in between (frontend/server/.../wlm/WorkerThread.java,
wlm/BatchAggregator.java, job/RestJob.java)::

    [DEBUG] W-9000-m_1.0 …wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: 1795987216680
    [INFO ] W-9000-m_1.0-stdout MODEL_METRICS - HandlerTime.ms:40.2|#ModelName:m,Level:Model|#hostname:h,requestID:a,b,…
    [INFO ] W-9000-m_1.0 …wlm.BatchAggregator - Sending response for jobId a
    [INFO ] W-9000-m_1.0 ACCESS_LOG - /127.0.0.1:52182 "POST /predictions/m HTTP/1.1" 200 47
    [DEBUG] W-9000-m_1.0 …job.RestJob - Waiting time ns: 5144027, Backend time ns: 42033625
    [INFO ] W-9000-m_1.0 …wlm.BatchAggregator - Sending response for jobId b
    …

Lines of ``org.pytorch.serve`` appear twice, and the lines of several threads interleave. Each thread's lines keep their
order, so threads are followed separately. A refused request (queue full) only has an ACCESS_LOG line, written by a
thread that is not a worker's. With metrics_mode=prometheus there is no MODEL_METRICS line, but the worker's own line
appears as ``…wlm.WorkerLifeCycle - result=[METRICS]HandlerTime…``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final

from tsbatch.serving.worker_log import WORKER

LINE: Final = re.compile(
    rb".{23} \[.{5}\] (?P<thread>\S+) (?:"
    rb"org\.pytorch\.serve\.(?:"
    rb"wlm\.WorkerThread - Flushing req\.(?: ?cmd (?P<command>\w+))?.* at: (?P<flushed>\d+)"
    rb"|wlm\.BatchAggregator - Sending response for jobId (?P<job>\S+)"
    rb"|job\.\w+ - Waiting time ns: (?P<waited>\d+), (?P<clock>\w+) time ns: (?P<took>\d+)"
    rb"|wlm\.WorkerLifeCycle - result=\[METRICS\](?P<early>Handler|Prediction)Time\.[^:]+:(?P<early_ms>[^|]+)"
    rb"\|.*#hostname:[^,]*,\d+,(?P<id>[^,]+)"
    rb")|MODEL_METRICS - (?P<late>Handler|Prediction)Time\.[^:]+:(?P<late_ms>[^|]+)\|.*requestID:(?P<first>[^,]+)"
    rb'|ACCESS_LOG - \S+ "\w+ (?P<path>\S+)[^"]*" (?P<status>\w+) (?P<total>\d+)'
    rb")"
)
"""The relevant lines, in log4j2's layout ``%d{ISO8601} [%-5p] %t %c - %m%n``. The last group names the kind."""

PREDICTS: Final = {None, b"PREDICT", b"STREAMPREDICT", b"STREAMPREDICT2"}
"""Commands that carry requests; TorchServe up to 0.8 logs no command."""

CALL: Final = re.compile(
    r"/(?:predictions|explanations)/(?P<name>[^/?]+)(?:/(?P<version>[^/?]+))?"
    r"|/v1/models/(?P<v1>[^/?:]+):"
    r"|/v2/models/(?P<v2>[^/?]+)(?:/versions/(?P<v2_version>[^/?]+))?/infer"
)
MAX_PENDING: Final = 8
"""Batches that may wait for their handler time, because another thread reads the worker's output and is often late."""

NANOSECONDS_PER_MS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a batch.

    Attributes:
        id: TorchServe's request id.
        waited: time from its arrival until its batch was complete, ms.
        took: time from then until its answer, ms.
        status: HTTP status of the answer.
    """

    id: str
    waited: float
    took: float
    status: int


@dataclass(slots=True)
class Batch:
    """Requests that were handed to a worker together.

    Attributes:
        model, version: the model.
        worker: the worker's thread.
        flushed: when the batch was complete, ms since the epoch.
        free: when the worker could begin the batch: after its previous batch, and after any other worker of the model
            that was filling one (only one at a time does: wlm/Model.java, pollBatch).
        jobs: its requests, in the order of their answers.
        handler: handler time, ms; NaN if unknown.
    """

    model: str
    version: str
    worker: str
    flushed: float
    free: float
    jobs: list[Job] = field(default_factory=list)
    handler: float = math.nan

    @property
    def begun(self) -> float:
        """When the worker took the first request, ms since the epoch."""
        return min(self.flushed, max(self.free, self.flushed - max(job.waited for job in self.jobs)))

    @property
    def ended(self) -> float:
        """When the last request was answered, ms since the epoch."""
        return self.flushed + max(job.took for job in self.jobs)

    @property
    def in_handler(self) -> float:
        """Handler time, ms; if unknown, the time until the first answer, which includes the transfer."""
        return min(job.took for job in self.jobs) if math.isnan(self.handler) else self.handler

    def waits(self, job: Job) -> tuple[float, float]:
        """Return queue wait and assembly wait of one of its requests, ms."""
        arrival = self.flushed - job.waited
        return max(0.0, self.begun - arrival), self.flushed - max(self.begun, arrival)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that never reached a worker.

    Attributes:
        model, version: the model; an address without version means the version that answered last.
        at: time of the answer, ms since the epoch.
        took: ms.
        status: HTTP status.
    """

    model: str
    version: str
    at: float
    took: float
    status: int


@dataclass(slots=True)
class _Worker:
    """State of one worker: its current batch, and earlier ones whose handler time is still unknown."""

    name: str
    model: str
    version: str
    batch: Batch | None = None
    pending: list[Batch] = field(default_factory=list)
    ended: float = 0.0
    flushed: float = 0.0
    job: str = ""
    status: int | None = None
    times: dict[bytes, tuple[float, str]] = field(default_factory=dict)


class BatchReader:
    """Convert lines of ``ts_log.log`` into batches, in bounded memory."""

    def __init__(self) -> None:
        self._threads: dict[bytes, _Worker | None] = {}
        self._last: dict[bytes, bytes] = {}
        self._workers: dict[str, _Worker] = {}
        self._versions: dict[str, str] = {}
        self._others: dict[bytes, bytes] = {}
        self._stamp = b""
        self._flushed = 0.0
        self._ready: list[Batch | Refused] = []
        self._kinds: dict[str | None, Callable[[_Worker, re.Match[bytes]], None]] = {
            "flushed": self._flush,
            "job": self._set_job,
            "took": self._add_job,
            "id": self._handler_time,
            "first": self._handler_time,
            "total": self._set_status,
        }

    def feed(self, lines: Iterable[bytes]) -> Iterator[Batch | Refused]:
        """Yield the batches and refusals that these complete lines finish."""
        workers, last, kinds, ready = self._threads, self._last, self._kinds, self._ready
        for found in filter(None, map(LINE.match, lines)):
            name = found["thread"]
            worker = workers[name] if name in workers else self._worker_of(name)
            if worker is None:
                self._refuse(found)
            elif found.string != last.get(name):
                # By thread: the thread that reads the worker's output may write between two copies of a line.
                last[name] = found.string
                kinds[found.lastgroup](worker, found)
            if ready:
                yield from ready
                ready.clear()

    def finish(self) -> Iterator[Batch]:
        """Yield the unfinished batches at the end of the log."""
        for worker in self._workers.values():
            self._close(worker)
            self._ready += worker.pending
            worker.pending.clear()
        yield from (one for one in self._ready if isinstance(one, Batch))
        self._ready.clear()

    def _worker_of(self, name: bytes) -> _Worker | None:
        found = WORKER.fullmatch(name.decode(errors="replace"))
        model, _, version = found["model"].rpartition("_") if found else ("", "", "")
        if found is None or not model:
            self._threads[name] = None
            return None
        worker = found["worker"]
        self._threads[name] = self._workers.setdefault(worker, _Worker(worker, model, version))
        return self._threads[name]

    def _flush(self, worker: _Worker, found: re.Match[bytes]) -> None:
        flushed = float(found["flushed"])
        self._stamp, self._flushed = found.string[:23], flushed
        self._close(worker)
        if found["command"] not in PREDICTS:
            return
        others = (
            other.flushed
            for other in self._workers.values()
            if other is not worker and other.model == worker.model and other.version == worker.version
        )
        free = max(worker.ended, max(others, default=0.0))
        worker.batch = Batch(worker.model, worker.version, worker.name, flushed, free)
        worker.flushed = flushed
        self._versions[worker.model] = worker.version

    def _close(self, worker: _Worker) -> None:
        batch, worker.batch = worker.batch, None
        if batch is not None and batch.jobs:
            worker.ended = batch.ended
            for name, (ms, request) in worker.times.items():
                _set_handler_time(batch, name, ms, request)
            (worker.pending if math.isnan(batch.handler) else self._ready).append(batch)
            if len(worker.pending) > MAX_PENDING:
                self._ready.append(worker.pending.pop(0))
        worker.times.clear()
        worker.status = None

    def _set_job(self, worker: _Worker, found: re.Match[bytes]) -> None:
        worker.job = found["job"].decode()

    def _set_status(self, worker: _Worker, found: re.Match[bytes]) -> None:
        worker.status = _status(found["status"])

    def _add_job(self, worker: _Worker, found: re.Match[bytes]) -> None:
        if worker.batch is None:
            return  # the log starts in the middle of a batch
        waited, took = float(found["waited"]) / NANOSECONDS_PER_MS, float(found["took"]) / NANOSECONDS_PER_MS
        failed = found["clock"] == b"Inference"  # the error path counts from the arrival, and logs no job
        status = worker.status if worker.status is not None else 500 if failed else 200
        job = Job("" if failed else worker.job, waited, took - waited if failed else took, status)
        worker.batch.jobs.append(job)
        worker.status = None

    def _handler_time(self, worker: _Worker, found: re.Match[bytes]) -> None:
        name, value = found["early"] or found["late"], found["early_ms"] or found["late_ms"]
        try:
            ms, job = float(value), (found["id"] or found["first"]).decode()
        except ValueError:
            return
        batch = next((batch for batch in worker.pending if _set_handler_time(batch, name, ms, job)), None)
        if batch is None:
            worker.times[name] = ms, job
        else:
            worker.pending.remove(batch)
            self._ready.append(batch)

    def _refuse(self, found: re.Match[bytes]) -> None:
        name = found["thread"]
        if found.lastgroup != "total" or self._others.get(name) == found.string:
            return
        self._others[name] = found.string
        status = _status(found["status"])
        called = CALL.match(found["path"].decode(errors="replace"))
        if called is None or status < 400:
            return
        model = called["name"] or called["v1"] or called["v2"]
        if model not in self._versions:
            return  # no worker of this model has answered yet
        version = called["version"] or called["v2_version"] or self._versions[model]
        at = self._time_of(found.string[:23])
        self._ready.append(Refused(model, version, at, float(found["total"]), status))

    def _time_of(self, stamp: bytes) -> float:
        # Timestamps are local times of a machine that may be in another zone; hand-over lines have both clocks.
        if not self._stamp:
            return _naive(stamp)
        return self._flushed + _naive(stamp) - _naive(self._stamp)


def _set_handler_time(batch: Batch, name: bytes, ms: float, request: str) -> bool:
    """Set the handler time if the request belongs to this batch; HandlerTime takes precedence over PredictionTime."""
    if all(job.id != request for job in batch.jobs):
        return False
    if name == b"Handler" or math.isnan(batch.handler):
        batch.handler = ms
    return True


def _status(word: bytes) -> int:
    # gRPC logs OK or the name of an error.
    return int(word) if word.isdigit() else 200 if word == b"OK" else 500


def _naive(stamp: bytes) -> float:
    moment = datetime.fromisoformat(stamp.decode().replace(",", "."))
    return moment.replace(tzinfo=timezone.utc).timestamp() * 1000
