#!/usr/bin/env python3
"""Measure how soon a large model answers, and how much memory each additional worker needs.

    python benchmarks/load_time.py                 print tables; takes some minutes
    python benchmarks/load_time.py --quick         a small model, once; a check that the benchmark works
    python benchmarks/load_time.py --save FILE     write all figures to FILE

An encoder of 1.3 GB with random weights is packaged in three ways: as a tsbatch archive, as a folder (--format folder),
and in the stock way (a state dict in a .pt file, torch.load in BaseHandler, the default torch-model-archiver). Each is
registered in turn, with its files in the page cache and with them dropped from it; the time from registration to the
first answer is measured. For the memory, two workers run, and the private memory of the second one is compared with
that of a worker with the same handler whose model has almost no weights. Needs 8 GB of free disk space.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from _large_model import LARGE, NO_WEIGHTS, SMALL, WAYS, pack
from _ratios import Spread, ratios, turn
from _tables import Say, Target, deliver, figures_of, machine, options, progress, table

from tsbatch.archive.model_store import ModelSource
from tsbatch.operations.registration import scale
from tsbatch.serving.server import Server
from tsbatch.system.signals import end_on_signals

MEGABYTE: Final = 1_000_000
PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "load-time.md"
BEGIN: Final = "<!-- measured by benchmarks/load_time.py -->"
CHUNK: Final = 1 << 24
TEXT: Final = "A worker that has loaded its model answers this."
TURNS: Final = 3


@dataclass(frozen=True, slots=True)
class Start:
    """One measurement from registration to the first answer.

    Attributes:
        way: a key of ``_large_model.WAYS``.
        cold: whether the files had been dropped from the page cache.
        turn: the number of the turn, from 0.
        ready: seconds until the worker had loaded.
        answered: seconds until the first answer.
    """

    way: str
    cold: bool
    turn: int
    ready: float
    answered: float


@dataclass(frozen=True, slots=True)
class Memory:
    """The private memory of the second of two workers, in bytes, after some requests.

    Attributes:
        way: a key of ``_large_model.WAYS``.
        private: of the worker with the weights.
        without: of an identical worker whose model has almost no weights.
    """

    way: str
    private: int
    without: int


@dataclass
class Results:
    """All measurements; ``weights`` is the size of the weights in bytes."""

    weights: int
    starts: list[Start] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Convert to one JSON object."""
        rows = {"starts": [asdict(row) for row in self.starts], "memory": [asdict(row) for row in self.memory]}
        return {"schema": 1, "machine": machine(), "weights": self.weights, **rows}


class Bench:
    """A server with which models are registered one at a time.

    Args:
        server: the running server.
        say: receives progress messages.
    """

    def __init__(self, server: Server, say: Say) -> None:
        self.server, self.say = server, say
        self.client = httpx.Client(base_url=server.inference_address, trust_env=False, timeout=600)

    @contextmanager
    def registered(self, path: Path) -> Iterator[str]:
        """Register the model and yield its name; its worker is READY. Unregister it after the block."""
        source = ModelSource(path)
        url = source.link_into(self.server.instance.model_store)
        with self.server.management() as management:
            management.register(url, initial_workers=1, startup_timeout=600, response_timeout=600)
            try:
                yield source.name
            finally:
                management.unregister(source.name)

    def start(self, way: str, path: Path, number: int, *, cold: bool) -> Start:
        """Measure the time from registration to the first answer."""
        for file in files_of(path):
            (drop if cold else read)(file)
        started = time.perf_counter()
        with self.registered(path) as name:
            ready = time.perf_counter() - started
            self.ask(name)
            answered = time.perf_counter() - started
        self.say(f"turn {number + 1}, {'cold' if cold else 'warm'}: {WAYS[way]}: {answered:.1f} s")
        return Start(way, cold, number, ready, answered)

    def private(self, path: Path) -> int:
        """Measure the private bytes of the second of two workers, after both have answered requests."""
        with self.registered(path) as name, self.server.management() as management, ThreadPoolExecutor(8) as pool:
            # Scale up after registering: model-config.yaml would override a worker count given at registration.
            workers = scale(management, name, 2)["workers"]
            list(pool.map(self.ask, [name] * 32))
            return private_bytes(max(workers, key=lambda worker: int(worker["id"]))["pid"])

    def ask(self, name: str) -> None:
        """Send one request; its answer must be a vector."""
        headers = self.server.headers("inference")
        answer = self.client.post(f"/predictions/{name}", json={"inputs": TEXT}, headers=headers)
        if answer.status_code != 200 or "embedding" not in answer.json():
            raise SystemExit(f"load_time: {name}: got {answer.status_code} {answer.text[:300]}")


def files_of(path: Path) -> list[Path]:
    """List the file itself, or all files in the folder."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]


def read(file: Path) -> None:
    """Load the file into the page cache."""
    with file.open("rb", buffering=0) as stream:
        while stream.read(CHUNK):
            pass


def drop(file: Path) -> None:
    """Flush the file to disk and drop it from the page cache."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def private_bytes(pid: int) -> int:
    """Read the memory that no other process shares, in bytes (Linux)."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    lines = dict(line.split(":", 1) for line in rollup.splitlines()[1:])
    return sum(int(lines[name].split()[0]) * 1024 for name in ("Private_Clean", "Private_Dirty"))


def measure(sizes: Mapping[str, Any], turns: int, say: Say) -> Results:
    """Measure everything."""
    properties = {"job_queue_size": "1000", "enable_model_api": "true"}
    with end_on_signals(), tempfile.TemporaryDirectory(prefix="tsbatch-load-time-") as name:
        large = pack("large", Path(name), sizes, say)
        empty = pack("empty", Path(name), NO_WEIGHTS, say)
        results = Results((large["folder"] / "model.safetensors").stat().st_size)
        with Server.start(
            name=f"load-time-{os.getpid()}", properties=properties, env={"HF_HUB_OFFLINE": "1"}
        ) as server:
            bench = Bench(server, say)
            for number in range(turns):
                for cold in (False, True):
                    order = turn(list(large), number)
                    results.starts += [bench.start(way, large[way], number, cold=cold) for way in order]
            for way in large:
                results.memory.append(Memory(way, bench.private(large[way]), bench.private(empty[way])))
    return results


def report(figures: Mapping[str, Any]) -> str:
    """Render the two tables."""
    about, weights = figures["machine"], figures["weights"]
    text = f"{weights / MEGABYTE:,.0f} MB of weights; {about['cores']} cores ({about['cpu']}), torch {about['torch']}."
    return "\n\n".join([text, _starts(figures["starts"]), _memory(figures["memory"], weights)])


def _starts(starts: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for cold in (False, True):
        stock = _answered(starts, "stock", cold=cold)
        for way, what in WAYS.items():
            own = _answered(starts, way, cold=cold)
            cache = "dropped" if cold else "in the page cache"
            rows.append([what, cache, Spread.of(own).text(1), ratios(stock, own).text() if way != "stock" else ""])
    return table(["way", "files", "seconds to the first answer", "× faster than the stock way"], rows)


def _answered(starts: Sequence[Mapping[str, Any]], way: str, *, cold: bool) -> list[float]:
    rows = [start for start in starts if start["way"] == way and start["cold"] == cold]
    return [start["answered"] for start in sorted(rows, key=lambda start: int(start["turn"]))]


def _memory(rows: Sequence[Mapping[str, Any]], weights: int) -> str:
    cells = [
        [
            WAYS[row["way"]],
            f"{row['private'] / MEGABYTE:.0f}",
            f"{row['without'] / MEGABYTE:.0f}",
            f"{(row['private'] - row['without']) / MEGABYTE:.0f}",
            f"{(row['private'] - row['without']) / weights:.1%}",
        ]
        for row in rows
    ]
    return table(
        ["way", "private MB of the second worker", "without weights", "difference", "share of the weights"], cells
    )


FASTER: Final = 4.0
SHARE: Final = 0.03


def wanted_of(figures: Mapping[str, Any]) -> list[Target]:
    """List the targets: the first answer 4 times faster, the second worker under 3 % of the weights.

    The first target applies to the way that the docs recommend for large models, because TorchServe needs time to
    unpack an archive.
    """
    stock, folder = (_answered(figures["starts"], way, cold=False) for way in ("stock", "folder"))
    wanted = [Target(f"× faster: {WAYS['folder']}", FASTER, ratios(stock, folder))]
    for row in figures["memory"]:
        if row["way"] != "stock":
            share = (row["private"] - row["without"]) / figures["weights"]
            wanted.append(Target(f"share of the weights: {WAYS[row['way']]}", SHARE, Spread.of([share]), below=True))
    return wanted


def main(words: list[str]) -> int:
    """Measure, print, write; return exit code 1 if a target is missed."""
    parser = options("Time to the first answer and memory of a large model.")
    parser.add_argument("--quick", action="store_true", help="a small model, once; a check that the benchmark works")
    parser.add_argument("--turns", type=int, default=TURNS, help=f"turns of all ways (default {TURNS})")
    chosen = parser.parse_args(words)
    os.environ["HF_HUB_OFFLINE"] = "1"
    sizes, turns = (SMALL, 1) if chosen.quick else (LARGE, chosen.turns)
    figures = figures_of(chosen, lambda: measure(sizes, turns, progress()).figures())
    return deliver(chosen, figures, report(figures), PAGE, BEGIN, [] if chosen.quick else wanted_of(figures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
