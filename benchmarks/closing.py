#!/usr/bin/env python3
"""How often a registered ``close()`` is reached, for every way a worker's life can end.

    python benchmarks/closing.py --write      measure, and put the table into docs/closing.md
    python benchmarks/closing.py --json       one JSON object on the last line
    python benchmarks/closing.py --tries 3 --way stop

Each try starts a worker, ends it in one of five ways while it is idle or busy, and looks for the file that its
``on_close`` callback writes. The callback goes on stamping the time into that file for a second, so the last stamp
tells how long a closing may take before SIGKILL. Exit code 1 when a promise of docs/closing.md was not kept: a command
given to ``when_gone`` always runs, and a batch that takes too long or a killed frontend leaves time to close.
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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

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
    """Is busy as long and in the way it is told, and says when it is closed."""

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
"""What the worker is doing: nothing, Python code, or something that lets other threads run (a sleep, most of torch)."""
WAYS = ("unregister", "scale down", "stop", "time-out", "killed frontend")
ONE_SERVER = frozenset({"unregister", "scale down", "time-out"})
"""Ways that leave the server alive for the next try."""
SURE = frozenset({"time-out", "killed frontend"})
"""Ways in which nobody kills the worker before it has closed."""
RESPONSE_TIMEOUT = 2
SECONDS_TO_CLOSE = 5
"""After this nothing comes any more; a worker whose frontend is gone may be busy for longer."""

PAGE = Path(__file__).parents[1] / "docs" / "closing.md"
BEGIN = "<!-- measured by benchmarks/closing.py -->"
END = "<!-- end -->"

Say = Callable[[str], None]


@dataclass
class Row:
    """What became of one way to end a worker in one state.

    Attributes:
        way: how it was ended.
        state: what it was doing.
        tries: how often that was tried.
        reached: how often the callback began.
        left: milliseconds that the callback had until SIGKILL, for each time it began; 1000 is "as long as it likes".
        gone: how often the command given to ``when_gone`` ran.
    """

    way: str
    state: str
    tries: int = 0
    reached: int = 0
    left: list[float] = field(default_factory=list)
    gone: int = 0

    def take(self, stamps: Sequence[float], *, gone: bool) -> None:
        """One more try: the times the callback wrote down, and whether the command ran."""
        self.tries += 1
        self.gone += gone
        if stamps:
            self.reached += 1
            self.left.append(round((stamps[-1] - stamps[0]) * 1000, 1))

    @property
    def time_left(self) -> str:
        """How long a closing may take: least and median, for people."""
        if not self.left:
            return "-"
        least, middle = min(self.left), statistics.median(self.left)
        return "over 900 ms" if least > 900 else f"{least:.0f} ms, {middle:.0f} ms"


class Bench:
    """Servers and workers to end, and what they leave behind.

    Args:
        folder: where archive and files go.
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
        """A server with one worker, for this way to end it."""
        archive = self.hasty if way == "time-out" else self.patient
        return Server.start(models=[archive], name=f"closing-{os.getpid()}")

    def row(self, way: str, state: str, tries: int, say: Say) -> Row:
        """Try ``tries`` times."""
        row = Row(way, state)
        with contextlib.ExitStack() as running:
            server: Server | None = None
            while row.tries < tries:
                if server is None or way not in ONE_SERVER:
                    running.close()
                    server = running.enter_context(self.server(way))
                pid = self.end(server, way, state)
                row.take(self._stamps(pid), gone=(self.folder / f"gone-{pid}").exists())
                say(f"{way}, {state}: reached {row.reached} of {row.tries}, gone {row.gone}")
        return row

    def end(self, server: Server, way: str, state: str) -> int:
        """End the server's worker in this way, see to it that there is one again, and return its process id."""
        with server.management() as management:
            worker = psutil.Process(management.wait_ready(MODEL)["workers"][0]["pid"])
            ask(server, "idle")  # a worker that has answered before, as workers in service have
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
                asking.join(1)  # TorchServe never answers some of them
            if way == "unregister":
                management.register(f"{MODEL}.mar")
            elif way == "scale down":
                management.scale(MODEL, 1)
        return worker.pid

    def _busy(self, server: Server, pid: int, state: str) -> threading.Thread:
        """Let the worker do something, and return when it does."""
        asking = threading.Thread(target=ask, args=(server, state), daemon=True)
        asking.start()
        sign = self.folder / f"busy-{pid}"
        deadline = time.monotonic() + 30
        while not sign.exists():
            if time.monotonic() > deadline:
                raise SystemExit("closing: the worker did not take the request")
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
    """One request that says what the worker is to do; the answer, if any, does not matter."""
    connection = http.client.HTTPConnection(urlsplit(server.inference_address).netloc, timeout=90)
    headers = {**server.headers("inference"), "Content-Type": "application/json"}
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("POST", f"/predictions/{MODEL}", json.dumps(how), headers)
        connection.getresponse().read()


def cells(ways: Sequence[str]) -> list[tuple[str, str]]:
    """Every way with every state it can meet; an idle worker cannot be late."""
    return [(way, state) for way in ways for state in STATES if (way, state) != ("time-out", "idle")]


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    head = ("how it ends", "the worker is", "`close()` reached", "time it had: least, median", "`when_gone` ran")
    lines = [head, ["---"] * len(head)]
    lines += [
        (row.way, row.state, f"{row.reached} of {row.tries}", row.time_left, f"{row.gone} of {row.tries}")
        for row in rows
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def broken_promises(rows: Sequence[Row]) -> list[Row]:
    """The rows in which something failed that does not depend on who is faster."""
    return [row for row in rows if row.gone < row.tries or (row.way in SURE and row.reached < row.tries)]


def with_table(page: str, text: str) -> str:
    """The page with its table replaced by another.

    Raises:
        SystemExit: the page has no place for a table.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"closing: {PAGE} has no lines {BEGIN} and {END}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(words: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How often close() is reached.")
    parser.add_argument("--tries", type=int, default=20, help="tries of each kind (default 20)")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way; may be repeated")
    parser.add_argument("--write", action="store_true", help="put the table into docs/closing.md")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output, nothing else")
    chosen = parser.parse_args(words)

    def say(message: str) -> None:
        print(message, file=sys.stderr, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="tsbatch-closing-"))
    try:
        bench = Bench(folder)
        with end_on_signals():
            rows = [bench.row(way, state, chosen.tries, say) for way, state in cells(chosen.way or WAYS)]
    finally:
        shutil.rmtree(folder)
    figures: dict[str, Any] = {"schema": 1, "tries": chosen.tries, "rows": [asdict(row) for row in rows]}
    if chosen.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table(rows)), encoding="utf-8")
    print(json.dumps(figures) if chosen.json else table(rows))
    broken = broken_promises(rows)
    for row in broken:
        say(f"broken promise: {row.way}, {row.state}: reached {row.reached}, gone {row.gone} of {row.tries}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
