"""A thin client that stamps and times its requests, and the split that TorchServe's own log gives.

One thread and raw sockets: a client that is itself late would be measured along with the server.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.support import make_archive
from tsbatch.serving.server import Server

SLEEPER = """
import time
from tsbatch import BatchHandler

class Sleeper(BatchHandler):
    def load_model(self):
        return None

    def preprocess(self, items):
        return [item.value for item in items]

    def inference(self, tensors):
        time.sleep(self.options["milliseconds"] / 1000)
        return tensors

    def collate(self, features):
        return features
"""
"""A model that takes a set time, however many items share its pass."""

BATCH = 40
"""What a batch takes in the two models that are timed, in milliseconds."""
DELAY = 100
CONFIGS = {
    "one": {"batchSize": 1, "maxBatchDelay": DELAY, "milliseconds": BATCH},
    "eight": {"batchSize": 8, "maxBatchDelay": DELAY, "milliseconds": BATCH},
    "quick": {"batchSize": 8, "maxBatchDelay": 5, "milliseconds": 0},
}
"""Three models: one request per batch, eight, and one to warm Java up with."""


def archives(folder: Path) -> list[Path]:
    """The three models, packed."""
    made = []
    for name, numbers in CONFIGS.items():
        lines = ["minWorkers: 1", "maxWorkers: 1", "responseTimeout: 60", "startupTimeout: 60"]
        lines += [f"batchSize: {numbers['batchSize']}", f"maxBatchDelay: {numbers['maxBatchDelay']}"]
        lines += ["handler:", f"  milliseconds: {numbers['milliseconds']}", ""]
        made.append(make_archive(folder, name, SLEEPER, config="\n".join(lines)))
    return made


def warm_up(server: Server, requests: int) -> None:
    """Get Java over its slow first thousands of requests, and every worker over its first batches."""
    load(server, "quick", 24, requests // 24)
    for name in ("one", "eight"):
        load(server, name, 8, 3)


@dataclass(frozen=True)
class Timed:
    """One answered request, all times in milliseconds.

    Attributes:
        start: when it was sent, since the epoch.
        total: until the answer was there, by the client's clock.
        parts: the durations of the answer's Server-Timing header.
        batch: requests in its batch.
        id: TorchServe's id of the request.
    """

    start: float
    total: float
    parts: dict[str, float]
    batch: int
    id: str

    @property
    def told(self) -> float:
        """What the server says the request took."""
        return self.parts["queue"] + self.parts["assembly"] + self.parts["handler"]

    @property
    def agrees(self) -> bool:
        """Whether that is within 5 ms or 5 % of what the client measured."""
        return abs(self.total - self.told) <= max(5.0, 0.05 * self.total)


@dataclass
class _Client:
    """One keep-alive connection with at most one request on its way."""

    connection: socket.socket
    head: bytes
    left: int
    sent: float = 0.0
    answer: bytearray = field(default_factory=bytearray)

    def send(self) -> None:
        self.left -= 1
        self.answer.clear()
        self.sent = time.time()
        self.connection.sendall(self.head % (b"%.6f" % self.sent))

    def receive(self) -> Timed | None:
        """The answer, once the last of it is there."""
        data = self.connection.recv(65536)
        now = time.time()
        assert data, f"the server hung up: {bytes(self.answer)!r}"
        self.answer += data
        head, gap, body = self.answer.partition(b"\r\n\r\n")
        if not gap:
            return None
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if len(body) < int(headers["content-length"]):
            return None
        assert status.split()[1] == "200", self.answer.decode("latin-1")
        entries = headers["server-timing"]
        parts = {name: float(value) for name, value in re.findall(r"(\w+);dur=([\d.]+)", entries)}
        batch = re.search(r'batch;desc="(\d+)/', entries)
        assert batch, entries
        return Timed(self.sent * 1000, (now - self.sent) * 1000, parts, int(batch[1]), headers["x-request-id"])


def load(server: Server, model: str, clients: int, each: int = 1) -> list[Timed]:
    """Send ``each`` requests on every of ``clients`` connections, the next one when the last is answered."""
    address = urlsplit(server.inference_address)
    fields = {**server.headers("inference"), "Host": address.netloc, "Content-Type": "application/json"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    head = f"POST /predictions/{model} HTTP/1.1\r\n{lines}Content-Length: 1\r\nX-Request-Start: t=%s\r\n\r\n1".encode()
    done = []
    with selectors.DefaultSelector() as ready:
        try:
            for _ in range(clients):
                connection = socket.create_connection((address.hostname, address.port), timeout=60)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(connection, selectors.EVENT_READ, _Client(connection, head, each))
            time.sleep(0.2)  # the server has accepted them all
            everyone = [key.data for key in ready.get_map().values()]
            for client in everyone:
                client.send()
            while len(done) < clients * each:
                events = ready.select(60)
                assert events, f"{len(done)} of {clients * each} requests answered in a minute"
                for key, _ in events:
                    timed = key.data.receive()
                    if timed:
                        done.append(timed)
                        if key.data.left:
                            key.data.send()
        finally:
            for key in list(ready.get_map().values()):
                key.data.connection.close()
    return done


@dataclass(frozen=True)
class Logged:
    """Queue and assembly wait of one request by TorchServe's log, in milliseconds."""

    queue: float
    assembly: float


def split_of_log(path: Path, model: str) -> dict[str, Logged]:
    """The waits of every request by TorchServe's own clock, by request id; for a model with one worker.

    ``Flushing`` is logged when a batch is complete (F), and each job's waiting time W when it is answered. So it
    arrived at F - W, and the batch was begun when the worker was done with its last one, or at the first arrival.
    """
    waits: dict[str, Logged] = {}
    flushed = free = 0.0
    batch: dict[str, float] = {}
    job = ""
    for line in _lines_of_worker(path, model):
        if found := re.search(r"Flushing req\.cmd PREDICT .* at: (\d+)", line):
            flushed, batch = float(found[1]), {}
        elif found := re.search(r"Sending response for jobId (\S+)", line):
            job = found[1]
        elif found := re.search(r"Waiting time ns: (\d+)", line):
            batch[job] = flushed - float(found[1]) / 1e6
        elif "Backend response time" in line and batch:
            begun = max(free, min(batch.values()))
            waits |= {
                name: Logged(max(0.0, begun - arrival), flushed - max(begun, arrival))
                for name, arrival in batch.items()
            }
            free, batch = _moment(line), {}
    return waits


def _lines_of_worker(path: Path, model: str) -> Sequence[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    # Lines of org.pytorch.serve reach this file through two appenders.
    return list(dict.fromkeys(line for line in lines if re.search(rf"W-\d+-{re.escape(model)}_[^ ]+ ", line)))


def _moment(line: str) -> float:
    day, _, milliseconds = line.split(" ", 1)[0].partition(",")
    return time.mktime(time.strptime(day, "%Y-%m-%dT%H:%M:%S")) * 1000 + float(milliseconds)
