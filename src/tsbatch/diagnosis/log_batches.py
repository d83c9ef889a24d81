r"""The batches that TorchServe's ``ts_log.log`` tells of, worker by worker.

What one batch of two requests leaves in the log, with the lines in between left out (frontend/server/.../wlm/
WorkerThread.java, wlm/BatchAggregator.java, job/RestJob.java)::

    [DEBUG] W-9000-m_1.0 …wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: 1795987216680
    [INFO ] W-9000-m_1.0-stdout MODEL_METRICS - HandlerTime.ms:40.2|#ModelName:m,Level:Model|#hostname:h,requestID:a,b,…
    [INFO ] W-9000-m_1.0 …wlm.BatchAggregator - Sending response for jobId a
    [INFO ] W-9000-m_1.0 ACCESS_LOG - /127.0.0.1:52182 "POST /predictions/m HTTP/1.1" 200 47
    [DEBUG] W-9000-m_1.0 …job.RestJob - Waiting time ns: 5144027, Backend time ns: 42033625
    [INFO ] W-9000-m_1.0 …wlm.BatchAggregator - Sending response for jobId b
    …

Lines of ``org.pytorch.serve`` stand there twice, and those of several threads interleave. A thread's own lines keep
their order, so each is followed for itself. A refused request (queue full) leaves its ACCESS_LOG line only, written
by a thread that is no worker's. With metrics_mode=prometheus there is no MODEL_METRICS line, but the worker's own
line stands in the log as ``…wlm.WorkerLifeCycle - result=[METRICS]HandlerTime…``.
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
"""The lines that count, in log4j2's layout ``%d{ISO8601} [%-5p] %t %c - %m%n``. The last group names the kind."""

PREDICTS: Final = {None, b"PREDICT", b"STREAMPREDICT", b"STREAMPREDICT2"}
"""Commands that carry requests; TorchServe up to 0.8 names none."""

CALL: Final = re.compile(
    r"/(?:predictions|explanations)/(?P<name>[^/?]+)(?:/(?P<version>[^/?]+))?"
    r"|/v1/models/(?P<v1>[^/?:]+):"
    r"|/v2/models/(?P<v2>[^/?]+)(?:/versions/(?P<v2_version>[^/?]+))?/infer"
)
LATE: Final = 8
"""So many batches later a handler time may be told: another thread reads the worker's output, and is often behind."""

NANOSECONDS: Final = 1e6
"""In a millisecond."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a batch.

    Attributes:
        id: TorchServe's request id.
        waited: from its arrival until its batch was complete, ms.
        took: from then until it was answered, ms.
        status: HTTP status of the answer.
    """

    id: str
    waited: float
    took: float
    status: int


@dataclass(slots=True)
class Batch:
    """Requests that one worker was handed together.

    Attributes:
        model, version: whose.
        worker: the worker's thread.
        flushed: when the batch was complete, ms since the epoch.
        free: until when the worker could not begin it: its previous batch, or another worker of the model that was
            being filled (one at a time is: wlm/Model.java, pollBatch).
        jobs: its requests, in the order they were answered.
        handler: time in the handler, ms; NaN when nobody told.
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
        """Time in the handler, ms; where nobody told, what the way there and back leaves open: the first answer's."""
        return min(job.took for job in self.jobs) if math.isnan(self.handler) else self.handler

    def waits(self, job: Job) -> tuple[float, float]:
        """Queue wait and assembly wait of one of its requests, ms."""
        arrival = self.flushed - job.waited
        return max(0.0, self.begun - arrival), self.flushed - max(self.begun, arrival)


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that never reached a worker.

    Attributes:
        model, version: whose; an address without a version means the one that answered last.
        at: when it was answered, ms since the epoch.
        took: ms.
        status: HTTP status.
    """

    model: str
    version: str
    at: float
    took: float
    status: int


@dataclass(slots=True)
class _Thread:
    """What is known of one worker: the batch it has in hand, and those before it whose handler time is not told yet."""

    name: str
    model: str
    version: str
    batch: Batch | None = None
    before: list[Batch] = field(default_factory=list)
    ended: float = 0.0
    flushed: float = 0.0
    job: str = ""
    status: int | None = None
    told: dict[bytes, tuple[float, str]] = field(default_factory=dict)


class BatchReader:
    """Turns lines of ``ts_log.log``, in their order, into batches; remembers no more than each worker's last one."""

    def __init__(self) -> None:
        self._threads: dict[bytes, _Thread | None] = {}
        self._last: dict[bytes, bytes] = {}
        self._workers: dict[str, _Thread] = {}
        self._versions: dict[str, str] = {}
        self._others: dict[bytes, bytes] = {}
        self._stamp = b""
        self._flushed = 0.0
        self._ready: list[Batch | Refused] = []
        self._kinds: dict[str | None, Callable[[_Thread, re.Match[bytes]], None]] = {
            "flushed": self._flush,
            "job": self._answer,
            "took": self._job,
            "id": self._early,
            "first": self._late,
            "total": self._access,
        }

    def feed(self, lines: Iterable[bytes]) -> Iterator[Batch | Refused]:
        """The batches and refusals that became known with these lines, which end at line breaks."""
        threads, last, kinds, ready = self._threads, self._last, self._kinds, self._ready
        for found in filter(None, map(LINE.match, lines)):
            name = found["thread"]
            thread = threads[name] if name in threads else self._meet(name)
            if thread is None:
                self._refuse(found)
            elif found.string != last.get(name):
                # By thread, not by worker: the one that reads the worker's output writes between two copies of a line.
                last[name] = found.string
                kinds[found.lastgroup](thread, found)
            if ready:
                yield from ready
                ready.clear()

    def finish(self) -> Iterator[Batch]:
        """The batches still in hand; call it when there are no more lines."""
        for worker in self._workers.values():
            self._close(worker)
            self._ready += worker.before
            worker.before.clear()
        yield from (one for one in self._ready if isinstance(one, Batch))
        self._ready.clear()

    def _meet(self, name: bytes) -> _Thread | None:
        found = WORKER.fullmatch(name.decode(errors="replace"))
        model, _, version = found["model"].rpartition("_") if found else ("", "", "")
        if found is None or not model:
            self._threads[name] = None
            return None
        worker = found["worker"]
        thread = self._workers.get(worker) or _Thread(worker, model, version)
        self._workers[worker] = self._threads[name] = thread
        return thread

    def _flush(self, worker: _Thread, found: re.Match[bytes]) -> None:
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

    def _close(self, worker: _Thread) -> None:
        batch, worker.batch = worker.batch, None
        if batch is not None and batch.jobs:
            worker.ended = batch.ended
            for name, (ms, request) in worker.told.items():
                _credit(batch, name, ms, request)
            (worker.before if math.isnan(batch.handler) else self._ready).append(batch)
            if len(worker.before) > LATE:
                self._ready.append(worker.before.pop(0))
        worker.told.clear()
        worker.status = None

    def _answer(self, worker: _Thread, found: re.Match[bytes]) -> None:
        worker.job = found["job"].decode()

    def _access(self, worker: _Thread, found: re.Match[bytes]) -> None:
        worker.status = _status(found["status"])

    def _job(self, worker: _Thread, found: re.Match[bytes]) -> None:
        if worker.batch is None:
            return  # the log begins in the middle of a batch
        waited, took = float(found["waited"]) / NANOSECONDS, float(found["took"]) / NANOSECONDS
        failed = found["clock"] == b"Inference"  # the error path counts from the arrival, and names no job
        status = worker.status if worker.status is not None else 500 if failed else 200
        job = Job("" if failed else worker.job, waited, took - waited if failed else took, status)
        worker.batch.jobs.append(job)
        worker.status = None

    def _early(self, worker: _Thread, found: re.Match[bytes]) -> None:
        self._tell(worker, found["early"], found["early_ms"], found["id"])

    def _late(self, worker: _Thread, found: re.Match[bytes]) -> None:
        self._tell(worker, found["late"], found["late_ms"], found["first"])

    def _tell(self, worker: _Thread, name: bytes, value: bytes, request: bytes) -> None:
        try:
            ms, job = float(value), request.decode()
        except ValueError:
            return
        late = next((batch for batch in worker.before if _credit(batch, name, ms, job)), None)
        if late is None:
            worker.told[name] = ms, job
        else:
            worker.before.remove(late)
            self._ready.append(late)

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
            return  # nobody has a queue for it
        version = called["version"] or called["v2_version"] or self._versions[model]
        at = self._moment(found.string[:23])
        self._ready.append(Refused(model, version, at, float(found["total"]), status))

    def _moment(self, stamp: bytes) -> float:
        # The log has local time of a machine that may be in another zone; a hand-over has both.
        if not self._stamp:
            return _naive(stamp)
        return self._flushed + _naive(stamp) - _naive(self._stamp)


def _credit(batch: Batch, name: bytes, ms: float, request: str) -> bool:
    """Give a batch its handler time, if it is the one that this request was in; HandlerTime before PredictionTime."""
    if all(job.id != request for job in batch.jobs):
        return False
    if name == b"Handler" or math.isnan(batch.handler):
        batch.handler = ms
    return True


def _status(word: bytes) -> int:
    # gRPC writes OK and the names of its errors.
    return int(word) if word.isdigit() else 200 if word == b"OK" else 500


def _naive(stamp: bytes) -> float:
    moment = datetime.fromisoformat(stamp.decode().replace(",", "."))
    return moment.replace(tzinfo=timezone.utc).timestamp() * 1000
