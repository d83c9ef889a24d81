"""A 2 GB model as a folder and as a stored archive, beside the stock way.

The time-outs are TorchServe's own, 120 s. The memory is what the second worker holds alone after it has answered, less
what the second worker of the same handler holds whose model has next to no weights. Linux counts a mapped file as
private while one process alone maps it, so a lone worker seems to hold the weights in each way; the peak tells more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.support import post
from tsbatch.operations import registration
from tsbatch.system.process_memory import memory_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="private memory is read as Linux tells it")

SIZES = {"hidden_size": 1024, "num_hidden_layers": 40, "num_attention_heads": 16, "intermediate_size": 4096}
"""534 million weights in float32: 2.1 GB."""

MOST = 0.03
"""Of the weights' size, that a second worker may add in private memory."""

TIMEOUT = 120
MEGABYTE = 10**6
TEXT = "A worker that has loaded its model answers this."
WAYS = {"folder": "tsbatch, folder", "mar": "tsbatch, stored .mar", "stock": "torch-model-archiver, torch.load"}


@dataclass
class Row:
    """One way, measured."""

    way: str
    packing: float
    bytes: int
    ready: float
    answered: float
    first: int
    second: int
    peak: int

    def text(self, weights: int) -> str:
        return (
            f"{WAYS[self.way]:<34} packed in {self.packing:5.1f} s, {self.bytes / MEGABYTE:6.0f} MB; READY after"
            f" {self.ready:5.1f} s, first answer {self.answered:5.1f} s; private MB: a lone worker"
            f" {self.first / MEGABYTE:5.0f}, a second {self.second / MEGABYTE:5.0f} ({self.second / weights:6.1%} of"
            f" the weights); peak of one worker {self.peak / MEGABYTE:5.0f} MB"
        )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from _large_model import NO_WEIGHTS, save_model

    folders = {name: tmp_path_factory.mktemp(name) for name in ("large", "empty")}
    for name, sizes in (("large", SIZES), ("empty", NO_WEIGHTS)):
        save_model(folders[name], sizes)
    return folders


def pack(model: Path, store: Path, way: str, name: str) -> tuple[Path, float]:
    from _large_model import pack_stock

    begin = time.perf_counter()
    if way == "stock":
        store.mkdir(exist_ok=True)
        path = pack_stock(name, model, store)
        (model / "model.pt").unlink()
    else:
        words = ["--task", "text-embedding", "--model", model, "--name", name, "--format", way, "-o", store, "--json"]
        words += ["--startup-timeout", TIMEOUT, "--response-timeout", TIMEOUT]
        command = [sys.executable, "-m", "tsbatch", "package", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        path = Path(json.loads(done.stdout)["archive"])
    return path, time.perf_counter() - begin


class Registered:
    """A model on the server, with the seconds until it was READY and until its first answer."""

    def __init__(self, server, path: Path) -> None:
        self.server = server
        begin = time.perf_counter()
        with server.management() as management:
            found = registration.register(management, str(path), instance=server.instance)
        self.ready = time.perf_counter() - begin
        self.name = found.model["modelName"]
        assert found.model["startupTimeout"] == found.model["responseTimeout"] == TIMEOUT
        self.ask()
        self.answered = time.perf_counter() - begin

    def ask(self, _=None) -> None:
        answer = post(self.server, self.name, {"inputs": TEXT}, timeout=TIMEOUT)
        assert answer.status == 200, answer.body[:300]
        assert answer.json()["embedding"]

    def memory(self) -> tuple[int, int, int]:
        """Private bytes of the first worker alone and of the second, and the most that one of them ever held."""
        with self.server.management() as management, ThreadPoolExecutor(8) as pool:
            [worker] = management.describe(self.name)["workers"]
            first = memory_of(worker["pid"])
            workers = registration.scale(management, self.name, 2)["workers"]
            list(pool.map(self.ask, range(32)))
            second = memory_of(max(workers, key=lambda worker: int(worker["id"]))["pid"])
        return first.private, second.private, max(first.peak, second.peak)


@contextmanager
def registered(server, path: Path):
    model = Registered(server, path)
    try:
        yield model
    finally:
        with server.management() as management:
            management.unregister(model.name)


def measure(server, models, store: Path, way: str) -> Row:
    path, seconds = pack(models["large"], store, way, f"large-{way}")
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    with registered(server, path) as model:
        first, second, peak = model.memory()
    empty, _ = pack(models["empty"], store, way, f"empty-{way}")
    with registered(server, empty) as small:
        base_first, base_second, _ = small.memory()
    return Row(way, seconds, size, model.ready, model.answered, first - base_first, second - base_second, peak)


def test_line_4(server_factory, models, tmp_path, record_property):
    weights = (models["large"] / "model.safetensors").stat().st_size
    assert weights > 2e9
    rows = []
    with server_factory(properties={"job_queue_size": "1000"}) as server:
        for way in WAYS:
            rows.append(measure(server, models, tmp_path / "store", way))
            print(rows[-1].text(weights), flush=True)
    for row in rows:
        record_property(f"line4_{row.way}", row.text(weights))
    ours = {row.way: row for row in rows if row.way != "stock"}
    [stock] = [row for row in rows if row.way == "stock"]
    for row in ours.values():
        assert row.second < MOST * weights
        assert row.ready < stock.ready
