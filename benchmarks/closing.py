#!/usr/bin/env python3
"""Measure how often a registered ``close()`` is called, for every way in which a worker can end.

    python benchmarks/closing.py --write      measure, and write the table into docs/closing.md
    python benchmarks/closing.py --json       print one JSON object on the last line
    python benchmarks/closing.py --tries 3 --way stop

Each try starts a worker, ends it in one of five ways while it is idle or busy, and checks for the file that its
``on_close`` callback writes. The callback keeps writing timestamps into that file for a second, so the last timestamp
shows how much time closing has before SIGKILL. The exit code is 1 if a guarantee of docs/closing.md does not hold: a
command given to ``when_gone`` always runs, and a batch that times out or a killed frontend leaves time to close.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from _tables import Say, finish, into, progress, table

from tsbatch.archive.model_config import ModelConfig
from tsbatch.packaging.builder import package
from tsbatch.serving.server import Server
from tsbatch.system.signals import end_on_signals

MODEL = "closing"
HANDLER = '''
import os
import time
from pathlib import Path

from tsbatch import BatchHandler


class Closing(BatchHandler):
    """Is busy in the way that the request names, and writes timestamps while it closes."""

    def load_model(self):
        return None

    def prepare(self):
        self.folder = Path(self.options["folder"])
        self.on_close(self.stamp)
        self.when_gone("touch", str(self.folder / f"gone-{os.getpid()}"))

    def stamp(self):
        until = time.time() + 1
        with (self.folder / f"closed-{os.getpid()}").open("w", buffering=1) as file:
            while time.time() < until:
                file.write(f"{time.time()}\\n")
                time.sleep(0.0002)

    def preprocess(self, items):
        return [item.value for item in items]

    def collate(self, features):
        return features

    def inference(self, tensors):
        how = tensors[0]
        if how != "idle":
            (self.folder / f"busy-{os.getpid()}").touch()
        if how == "asleep":
            time.sleep(60)
        until = time.time() + 60
        while how == "computing" and time.time() < until:
            sum(range(1000))
        return tensors
'''
STATES = ("idle", "computing", "asleep")
"""The worker's activity: none, Python code, or a call that lets other threads run (a sleep, most of torch)."""
WAYS = ("unregister", "scale down", "stop", "time-out", "killed frontend")
ONE_SERVER = frozenset({"unregister", "scale down", "time-out"})
"""Ways that leave the server running for the next try."""
GUARANTEED = frozenset({"time-out", "killed frontend"})
"""Ways in which nothing kills the worker before it has closed."""
RESPONSE_TIMEOUT = 2
SECONDS_TO_CLOSE = 5
"""After this time no more timestamps follow; a worker whose frontend was killed may stay busy for longer."""

PAGE = Path(__file__).parents[1] / "docs" / "closing.md"
BEGIN = "<!-- measured by benchmarks/closing.py -->"


@dataclass
class Row:
    """The results for one way to end a worker in one state.

    Attributes:
        way: how the worker was ended.
        state: the worker's activity at that time.
        tries: the number of tries.
        reached: how often the callback started.
        left: milliseconds from each start of the callback to SIGKILL; 1000 means that it was not cut short.
        gone: how often the command given to ``when_gone`` ran.
    """

    way: str
    state: str
    tries: int = 0
    reached: int = 0
    left: list[float] = field(default_factory=list)
    gone: int = 0

    def add(self, stamps: Sequence[float], *, gone: bool) -> None:
        """Add a try: the timestamps that the callback wrote, and whether the command ran."""
        self.tries += 1
        self.gone += gone
        if stamps:
            self.reached += 1
            self.left.append(round((stamps[-1] - stamps[0]) * 1000, 1))

    @property
    def time_left(self) -> str:
        """The time available for closing, in words: minimum and median."""
        if not self.left:
            return "-"
        minimum, median = min(self.left), statistics.median(self.left)
        return "over 900 ms" if minimum > 900 else f"{minimum:.0f} ms, {median:.0f} ms"


class Bench:
    """Servers and workers to end, and the files that they write.

    Args:
        folder: where the archives and those files are written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        handler = folder / "closing_handler.py"
        handler.write_text(HANDLER, encoding="utf-8")
        base = {"handler": {"folder": str(folder)}}
        self.patient, self.hasty = (
            package(
                name=MODEL,
                handler=handler,
                config=ModelConfig(workers=1, batch_size=1, response_timeout=seconds, base=base),
                output_dir=folder / f"archive-{seconds}",
            )
            for seconds in (120, RESPONSE_TIMEOUT)
        )

    def server(self, way: str) -> Server:
        """Start a server with one worker, configured for this way to end it."""
        archive = self.hasty if way == "time-out" else self.patient
        return Server.start(models=[archive], name=f"closing-{os.getpid()}")

    def row(self, way: str, state: str, tries: int, say: Say) -> Row:
        """End a worker ``tries`` times and collect the results."""
        row = Row(way, state)
        with contextlib.ExitStack() as running:
            server: Server | None = None
            while row.tries < tries:
                if server is None or way not in ONE_SERVER:
                    running.close()
                    server = running.enter_context(self.server(way))
                pid = self.end(server, way, state)
                row.add(self._stamps(pid), gone=(self.folder / f"gone-{pid}").exists())
                say(f"{way}, {state}: close() called {row.reached} of {row.tries} times, when_gone ran {row.gone}")
        return row

    def end(self, server: Server, way: str, state: str) -> int:
        """End the server's worker in this way, start a new one if the server remains, and return the old process id."""
        with server.management() as management:
            worker = psutil.Process(management.wait_ready(MODEL)["workers"][0]["pid"])
            ask(server, "idle")  # the worker has answered before, like workers in service
            asking = self._busy(server, worker.pid, state) if state != "idle" else None
            if way == "unregister":
                management.unregister(MODEL)
            elif way == "scale down":
                management.scale(MODEL, 0)
            elif way == "stop":
                server.stop()
            elif way == "killed frontend":
                os.kill(server.pid, signal.SIGKILL)
            with contextlib.suppress(psutil.TimeoutExpired):
                worker.wait(RESPONSE_TIMEOUT + SECONDS_TO_CLOSE)
            time.sleep(0.2)
            if asking:
                asking.join(1)  # TorchServe never answers some of these requests
            if way == "unregister":
                management.register(f"{MODEL}.mar")
            elif way == "scale down":
                management.scale(MODEL, 1)
        return worker.pid

    def _busy(self, server: Server, pid: int, state: str) -> threading.Thread:
        """Give the worker something to do, and return once it is doing it."""
        asking = threading.Thread(target=ask, args=(server, state), daemon=True)
        asking.start()
        marker = self.folder / f"busy-{pid}"
        deadline = time.monotonic() + 30
        while not marker.exists():
            if time.monotonic() > deadline:
                raise SystemExit("closing: the worker did not start the request within 30 s")
            time.sleep(0.005)
        time.sleep(0.2)
        return asking

    def _stamps(self, pid: int) -> list[float]:
        file = self.folder / f"closed-{pid}"
        if not file.exists():
            return []
        lines = file.read_text(encoding="utf-8").split("\n")
        return [float(line) for line in lines[:-1]]  # SIGKILL may have cut the last one


def ask(server: Server, how: str) -> None:
    """Send a request that names what the worker should do; the answer, if any, does not matter."""
    connection = http.client.HTTPConnection(urlsplit(server.inference_address).netloc, timeout=90)
    headers = {**server.headers("inference"), "Content-Type": "application/json"}
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("POST", f"/predictions/{MODEL}", json.dumps(how), headers)
        connection.getresponse().read()


def cells(ways: Sequence[str]) -> list[tuple[str, str]]:
    """List every way with every state in which it can happen; an idle worker cannot time out."""
    return [(way, state) for way in ways for state in STATES if (way, state) != ("time-out", "idle")]


def table_of(rows: Sequence[Row]) -> str:
    """Render the rows as Markdown."""
    head = ("how it ends", "the worker is", "`close()` called", "time available: minimum, median", "`when_gone` ran")
    lines = [
        (row.way, row.state, f"{row.reached} of {row.tries}", row.time_left, f"{row.gone} of {row.tries}")
        for row in rows
    ]
    return table(head, lines)


def broken_guarantees(rows: Sequence[Row]) -> list[Row]:
    """List the rows with failures that are not due to a race."""
    return [row for row in rows if row.gone < row.tries or (row.way in GUARANTEED and row.reached < row.tries)]


def main(words: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Measure how often close() is called.")
    parser.add_argument("--tries", type=int, default=20, help="tries per way and state (default 20)")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way; may be repeated")
    parser.add_argument("--write", action="store_true", help="write the table into docs/closing.md")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else to standard output")
    chosen = parser.parse_args(words)

    say = progress()
    folder = Path(tempfile.mkdtemp(prefix="tsbatch-closing-"))
    try:
        bench = Bench(folder)
        with end_on_signals():
            rows = [bench.row(way, state, chosen.tries, say) for way, state in cells(chosen.way or WAYS)]
    finally:
        shutil.rmtree(folder)
    figures: dict[str, Any] = {"schema": 1, "tries": chosen.tries, "rows": [asdict(row) for row in rows]}
    if chosen.write:
        PAGE.write_text(into(PAGE.read_text(encoding="utf-8"), table_of(rows), BEGIN), encoding="utf-8")
    broken = [
        f"{row.way}, {row.state}: close() called {row.reached}, when_gone ran {row.gone} of {row.tries} times"
        for row in broken_guarantees(rows)
    ]
    return finish(chosen, figures, table_of(rows), broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
