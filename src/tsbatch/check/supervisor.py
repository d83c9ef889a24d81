"""A process that loads the archive, watched from outside: what it tells, what it printed, what memory it holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tsbatch.errors import TsbatchError
from tsbatch.serving.worker_log import Reason, Tail, reason_in
from tsbatch.system.process_memory import Memory, kills, memory_of
from tsbatch.system.processes import MARK, detached, end_marked

PACKAGE = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("child_process.py")
SECONDS_BETWEEN_LOOKS = 0.05

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]


class LoadedTooLong(TsbatchError):
    """The archive was not loaded and measured within the time that was given."""


class WorkerProcess:
    """One process that works as a worker would; made by :func:`started`.

    Args:
        process: the child.
        folder: the private folder with its job, its events and what it printed.

    Attributes:
        events: what it has told so far.
        phases: the phases it is in, the outermost first.
    """

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._tail = Tail(folder / "events")
        self._printed = folder / "printed"
        self._kills_before = kills()
        self.events: list[Event] = []
        self.phases: list[str] = []
        self._failed: str | None = None

    def wait(self, on_event: OnEvent, *, seconds: float) -> bool:
        """Wait until it has done its job, telling each event; False when it ended before.

        Raises:
            LoadedTooLong: it is still at it after so many seconds.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = self._process.poll() is not None
            for line in self._tail.lines():
                self._take(json.loads(line), on_event)
            if self.find("done") is not None:
                return True
            if ended:
                return False
            if time.monotonic() > deadline:
                raise LoadedTooLong(f"it is still at it after {seconds:.0f} s (phase: {self.phase})")
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _take(self, event: Event, on_event: OnEvent) -> None:
        self.events.append(event)
        if event["event"] == "begin":
            self.phases.append(event["phase"])
            self._failed = None
        elif event["event"] in ("end", "failed"):
            self.phases.remove(event["phase"])
            # The innermost one; one whose error was caught is forgotten when the next begins.
            self._failed = (self._failed or event["phase"]) if event["event"] == "failed" else None
        on_event(event)

    @property
    def phase(self) -> str:
        """The phase it is in, or ended in."""
        return self._failed or (self.phases[-1] if self.phases else "asking")

    def find(self, name: str) -> Event | None:
        """The first event of this name."""
        return next((event for event in self.events if event["event"] == name), None)

    def all(self, name: str) -> list[Event]:
        """Every event of this name, without the name."""
        return [{key: value for key, value in one.items() if key != "event"} for one in self.events_named(name)]

    def events_named(self, name: str) -> Iterator[Event]:
        """Every event of this name."""
        return (event for event in self.events if event["event"] == name)

    def memory(self) -> Memory:
        """What it holds now."""
        return memory_of(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """Its exit code as a shell tells it: 137 when it was killed; None while it runs."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def printed(self) -> list[str]:
        """The lines it printed."""
        return self._printed.read_text(encoding="utf-8", errors="replace").splitlines()

    def reason(self) -> Reason:
        """Why it ended: the exception it printed with its place, or what its exit code says."""
        reason = reason_in(self.printed())
        if reason.certain or self.exit_code in (None, 0, 1):
            return reason
        now = kills()
        if now is not None and self._kills_before is not None and now > self._kills_before:
            return Reason(f"the process was killed for memory while loading (exit code 137, phase: {self.phase})")
        return Reason(f"the process ended while loading (exit code {self.exit_code}, phase: {self.phase})")


@contextmanager
def started(folder: Path, model_folder: Path, job: Mapping[str, Any]) -> Iterator[WorkerProcess]:
    """A process for this job, which ends with the block, with everything that it started.

    Args:
        folder: an empty private folder.
        model_folder: the unpacked archive, where it works.
        job: what it is to do.
    """
    events, task, mark = folder / "events", folder / "job.json", str(folder)
    whole = {**job, "folder": str(model_folder), "events": str(events), "package": str(PACKAGE)}
    with (folder / "printed").open("wb") as printed:
        task.write_text(json.dumps({**whole, "started": time.time()}), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(task)],
            cwd=model_folder,
            env=_environment(model_folder, mark),
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.STDOUT,
            **detached(),
        )
    worker = WorkerProcess(process, folder)
    try:
        yield worker
    finally:
        if worker.find("done") is None:
            process.kill()
        _end(process, mark)


def _environment(model_folder: Path, mark: str) -> dict[str, str]:
    """A worker's environment (util/messages/EnvironmentUtils.java), and our mark."""
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(model_folder)) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TS_DECODE_INPUT_REQUEST": "true", MARK: mark}


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    if process.stdin:
        process.stdin.close()  # it has waited for this, and closes its handler
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end_marked(mark)
