"""Six regimes of a model that sleeps ``fixed + each * n`` ms a batch, and a small client that puts it into them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import random
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

from tests.e2e.support import make_archive
from tsbatch.bench.request_table import Samples
from tsbatch.diagnosis.log_batches import Batch, BatchReader
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.regimes import Regime
from tsbatch.diagnosis.server_facts import known_of
from tsbatch.diagnosis.ts_log import read_lines
from tsbatch.serving.server import Server

OURS = """
import time
from tsbatch import BatchHandler

class Sleeper(BatchHandler):
    def load_model(self):
        return None

    def preprocess(self, items):
        return [item.value for item in items]

    def collate(self, features):
        return features

    def inference(self, tensors):
        time.sleep((self.options["fixed"] + self.options["each"] * len(tensors)) / 1000)
        return tensors
"""
FOREIGN = """
import time
from ts.torch_handler.base_handler import BaseHandler

class Plain(BaseHandler):
    def initialize(self, context):
        self.options = context.model_yaml_config["handler"]

    def handle(self, data, context):
        time.sleep((self.options["fixed"] + self.options["each"] * len(data)) / 1000)
        return [{"answer": 1} for _ in data]
"""


@dataclass(frozen=True)
class Load:
    """So many clients in a closed loop, or arrivals at a rate a second: evenly spaced, or Poisson."""

    clients: int = 0
    rate: float = 0
    poisson: bool = False
    seconds: float = 10

    def arrivals(self) -> list[float]:
        """When requests are sent, seconds from the start; the same ones each time."""
        chance = random.Random(7)
        gaps = (chance.expovariate(self.rate) if self.poisson else 1 / self.rate for _ in itertools.count())
        return list(itertools.takewhile(lambda at: at < self.seconds, itertools.accumulate(gaps)))


@dataclass(frozen=True)
class Settings:
    """What ``tsbatch`` could change."""

    workers: int
    batch_size: int
    delay: int

    def changed(self, setting: str, value: int) -> Settings:
        """With one of them changed, by TorchServe's name."""
        return replace(self, **{{"maxBatchDelay": "delay", "batchSize": "batch_size"}.get(setting, setting): value})


@dataclass(frozen=True)
class Case:
    """A regime: the model's cost in ms, its settings, the load, and which setting helps most (None: nothing does)."""

    regime: Regime
    settings: Settings
    fixed: float
    each: float
    load: Load
    helps: str | None
    queue_size: int = 100

    @property
    def name(self) -> str:
        return f"{self.regime.name.lower()}-{self.settings.workers}"

    def archive(self, folder: Path, handler: str = OURS) -> Path:
        """Its archive, made by torch-model-archiver."""
        config = f"responseTimeout: 60\nstartupTimeout: 120\njobQueueSize: {self.queue_size}\n"
        config += f"handler:\n  fixed: {self.fixed}\n  each: {self.each}\n"
        return make_archive(folder, self.name, handler, config=config)

    def changes(self) -> list[tuple[str, int]]:
        """Every single change that somebody would try."""
        now = self.settings
        tries = [("workers", 2 * now.workers), ("batchSize", 2 * now.batch_size)]
        if now.delay > 1:
            tries.append(("maxBatchDelay", 1))
        if now.batch_size > 1:
            tries.append(("batchSize", now.batch_size // 2))
        return tries


LOG = "ts_log.log"

CASES = [
    Case(Regime.IDLE, Settings(1, 4, 1), 120, 10, Load(rate=2, seconds=12), None),
    Case(Regime.IDLE, Settings(3, 4, 1), 120, 10, Load(rate=2, seconds=12), None),
    Case(Regime.SEQUENTIAL, Settings(1, 8, 200), 60, 5, Load(clients=1), "maxBatchDelay"),
    Case(Regime.SEQUENTIAL, Settings(3, 8, 200), 60, 5, Load(clients=1), "maxBatchDelay"),
    Case(Regime.ASSEMBLY, Settings(1, 16, 300), 60, 2, Load(rate=8, poisson=True, seconds=15), "maxBatchDelay"),
    Case(Regime.ASSEMBLY, Settings(3, 16, 300), 60, 2, Load(rate=20, poisson=True), "maxBatchDelay"),
    Case(Regime.QUEUE, Settings(1, 1, 1), 1, 20, Load(clients=16), "workers"),
    Case(Regime.QUEUE, Settings(3, 2, 1), 1, 20, Load(clients=36), "workers"),
    Case(Regime.FULL, Settings(1, 1, 1), 1, 60, Load(rate=27, poisson=True), "workers", queue_size=8),
    Case(Regime.FULL, Settings(3, 1, 1), 1, 60, Load(rate=75, poisson=True), "workers", queue_size=12),
    Case(Regime.COMPUTE, Settings(1, 8, 1), 110, 110, Load(rate=3, poisson=True, seconds=30), "workers"),
    Case(Regime.COMPUTE, Settings(3, 24, 20), 5, 10, Load(clients=24), "batchSize"),
]


@dataclass
class Answers:
    """What the client saw, request by request, in the order of the answers."""

    ids: list[str] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)

    def add(self, sent: float, status: int, headers: dict[str, str]) -> None:
        """Note one answer that is whole now."""
        timing = headers.get("server-timing", "")
        parts = {name: float(value) for name, value in re.findall(r"(\w+);dur=([\d.]+)", timing)}
        if batch := re.search(r'batch;desc="(\d+)/(\d+)"', timing):
            parts |= {"batch": float(batch[1]), "capacity": float(batch[2])}
        self.ids.append(headers.get("x-request-id", ""))
        self.rows.append({"sent": sent, "latency": (time.time() - sent) * 1000, "status": status, **parts})

    def samples(self) -> Samples:
        """As the table of requests; its rows are those of ``ids``."""
        names = {name for row in self.rows for name in row}
        return Samples(**{name: np.array([row.get(name, np.nan) for row in self.rows]) for name in names})


class Client:
    """Sends requests to one model over connections that are kept while the server keeps them."""

    def __init__(self, server: Server, model: str) -> None:
        self._address = urlsplit(server.inference_address)
        fields = {**server.headers("inference"), "Host": self._address.netloc, "Content-Type": "application/json"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._head = (
            f"POST /predictions/{model} HTTP/1.1\r\n{lines}Content-Length: 1\r\nX-Request-Start: t=%.6f\r\n\r\n1"
        )
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def run(self, load: Load) -> Answers:
        """Put this load on it."""
        answers = Answers()
        asyncio.run(self._open(load, answers) if load.rate else self._closed(load, answers))
        return answers

    async def _closed(self, load: Load, answers: Answers) -> None:
        end = time.monotonic() + load.seconds

        async def client() -> None:
            while time.monotonic() < end:
                await self._ask(answers)

        async with self._closing():
            await asyncio.gather(*(client() for _ in range(load.clients)))

    async def _open(self, load: Load, answers: Answers) -> None:
        begin = time.monotonic()
        async with self._closing():
            calls = []
            for at in load.arrivals():
                await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
                calls.append(asyncio.ensure_future(self._ask(answers)))
            await asyncio.gather(*calls)

    @contextlib.asynccontextmanager
    async def _closing(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for _, writer in self._free:
                writer.close()
            self._free.clear()

    async def _ask(self, answers: Answers) -> None:
        host, port = self._address.hostname, self._address.port
        reader, writer = self._free.pop() if self._free else await asyncio.open_connection(host, port)
        sent = time.time()
        writer.write((self._head % sent).encode())
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        await reader.readexactly(int(headers["content-length"]))
        answers.add(sent, int(status.split()[1]), headers)
        if headers.get("connection") == "close":
            writer.close()  # TorchServe hangs up after each error
        else:
            self._free.append((reader, writer))


@contextlib.contextmanager
def registered(server: Server, archive: Path, settings: Settings) -> Iterator[str]:
    """The model with these settings, for as long as the block lasts; warmed up."""
    name = f"{archive.stem}-{settings.workers}-{settings.batch_size}-{settings.delay}"
    with server.management() as management:
        management.register(
            archive.as_uri(),
            model_name=name,
            initial_workers=settings.workers,
            batch_size=settings.batch_size,
            max_batch_delay=settings.delay,
        )
        try:
            management.wait_ready(name)
            Client(server, name).run(Load(clients=settings.workers * settings.batch_size, seconds=1))
            yield name
        finally:
            management.unregister(name)


@dataclass(frozen=True)
class Run:
    """One load on one model: what the client saw, what is known beside, where its part of the log begins, CPU time."""

    model: str
    answers: Answers
    known: Known
    log_file: int
    log_from: int
    cpu_seconds: float

    def known_with_cpu(self, samples: Samples) -> Known:
        """With the cores that a worker used while it was in its handler, by the split of these samples."""
        good = samples.where(~np.isnan(samples.handler + samples.batch))
        return replace(self.known, worker_cores=self.cpu_seconds * 1000 / float((good.handler / good.batch).sum()))


def run(server: Server, model: str, load: Load) -> Run:
    """Put a load on a registered model."""
    with server.management() as management:
        known = known_of(management, model)
        pids = [worker["pid"] for worker in management.describe(model)["workers"]]
    log, before = (server.log_dir / LOG).stat(), cpu_seconds(pids)
    answers = Client(server, model).run(load)
    used = cpu_seconds(pids) - before
    return Run(model, answers, known, log.st_ino, log.st_size, used)


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time that these processes have used."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def p99(samples: Samples) -> float:
    """P99 of the latency of good answers, ms."""
    return float(np.quantile(samples.latency[samples.ok], 0.99))


def p50(samples: Samples) -> float:
    """P50 of the latency of good answers, ms."""
    return float(np.quantile(samples.latency[samples.ok], 0.5))


def log_of(server: Server, run: Run, folder: Path) -> Path:
    """A log folder that holds this run and nothing of its warm-up."""
    time.sleep(2)  # its last lines are written, and what was rotated is compressed
    folder.mkdir()
    log = server.log_dir / LOG
    text = log.read_bytes()
    if log.stat().st_ino != run.log_file:  # TorchServe began a new one at 100 MB, or at midnight
        rotated = max(server.log_dir.glob("ts_log.*.gz"), key=lambda file: file.stat().st_mtime)
        text = gzip.decompress(rotated.read_bytes()) + text
    (folder / LOG).write_bytes(text[run.log_from :])
    return folder


def logged(folder: Path, model: str) -> dict[str, tuple[float, ...]]:
    """Queue wait, assembly wait, handler time and what is outside of them by TorchServe's own log, by request id."""
    reader = BatchReader()
    batches: list[Batch] = []
    for lines in read_lines(folder / LOG, lambda _: None):
        batches += [one for one in reader.feed(lines) if isinstance(one, Batch)]
    batches += reader.finish()
    own = [batch for batch in batches if batch.model == model]
    return {
        job.id: (*batch.waits(job), batch.in_handler, job.took - batch.in_handler)
        for batch in own
        for job in batch.jobs
    }
