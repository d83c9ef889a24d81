"""Lines as TorchServe 0.12.0 writes them into ts_log.log; times of day count from 12:00:00 UTC of one day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

NOON = datetime(2026, 11, 29, 12, tzinfo=timezone.utc)
NOON_MS = int(NOON.timestamp() * 1000)


def stamp(at: float) -> str:
    """The time stamp of a line, ``at`` ms after noon."""
    moment = datetime.fromtimestamp((NOON_MS + at) / 1000, tz=timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S},{int(at) % 1000:03}"


def flushing(at: int, *, worker: int = 9000, model: str = "m_1.0", command: str = "PREDICT") -> list[str]:
    """A batch is complete; twice, as all lines of org.pytorch.serve."""
    text = f"Flushing req.cmd {command} repeats 1 to backend at: {NOON_MS + at}"
    return [f"{stamp(at)} [DEBUG] W-{worker}-{model} org.pytorch.serve.wlm.WorkerThread - {text}"] * 2


def told(at: int, ids: Sequence[str], ms: str, *, worker: int = 9000, model: str = "m_1.0", name: str = "HandlerTime"):
    """The worker tells its handler time."""
    name_of_model = model.rpartition("_")[0]
    begin = f"{stamp(at)} [INFO ] W-{worker}-{model}-stdout MODEL_METRICS - {name}.ms:{ms}"
    return [
        f"{begin}|#ModelName:{name_of_model},Level:Model|#hostname:vm,requestID:{','.join(ids)},timestamp:1795985899"
    ]


def answered(
    at: int, job: str, waited_ms: float, took_ms: float, *, worker: int = 9000, model: str = "m_1.0", status: int = 200
) -> list[str]:
    """One request of the batch is answered."""
    begin = f"{stamp(at)} [%s] W-{worker}-{model} "
    total = int(waited_ms + took_ms)
    times = f"Waiting time ns: {int(waited_ms * 1e6)}, Backend time ns: {int(took_ms * 1e6)}"
    path = f"/predictions/{model.rpartition('_')[0]}"
    return [
        *[f"{begin % 'INFO '}org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId {job}"] * 2,
        f'{begin % "INFO "}ACCESS_LOG - /127.0.0.1:52182 "POST {path} HTTP/1.1" {status} {total}',
        *[f"{begin % 'DEBUG'}org.pytorch.serve.job.RestJob - {times}"] * 2,
    ]


def refused(at: int, *, path: str = "/predictions/m", status: int = 503) -> list[str]:
    """A request that no worker got."""
    return [f'{stamp(at)} [INFO ] epollEventLoopGroup-3-4 ACCESS_LOG - /127.0.0.1:5 "POST {path} HTTP/1.1" {status} 2']


def as_bytes(*lines: Sequence[str]) -> list[bytes]:
    """As they lie in the file."""
    return [line.encode() for group in lines for line in group]
