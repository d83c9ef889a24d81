"""Start the process that loads the archive; collect its events, its output and its memory."""

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
from tsbatch.system.polling import wait_until
from tsbatch.system.process_memory import Memory, kills, memory_of
from tsbatch.system.processes import MARK, detached, end_marked

PACKAGE = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("child_process.py")

Event = Mapping[str, Any]
OnEvent = Callable[[Event], None]


class CheckTimeout(TsbatchError):
    """The archive was not loaded and measured in time."""


class WorkerProcess:
    """A process that works as a worker would; created by :func:`started`.

    Args:
        process: the child process.
        folder: the private folder with its job, its events and its output.

    Attributes:
        events: the events so far.
        phases: the current phases, the outermost first.
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
        """Wait until the job is done, passing on each event; return False if the process ended before.

        Raises:
            CheckTimeout: the job is not done after ``seconds``.
        """

        def finished() -> bool:
            ended = self._process.poll() is not None  # first, so that the last events are not missed
            for line in self._tail.lines():
                self._take(json.loads(line), on_event)
            return ended or self.find("done") is not None

        if not wait_until(finished, seconds, interval=0.05):
            raise CheckTimeout(
                f"still not done after {seconds:.0f} s (phase: {self.phase}); raise --limit, or find out why it hangs"
            )
        return self.find("done") is not None

    def _take(self, event: Event, on_event: OnEvent) -> None:
        self.events.append(event)
        if event["event"] == "begin":
            self.phases.append(event["phase"])
            self._failed = None
        elif event["event"] in ("end", "failed"):
            self.phases.remove(event["phase"])
            # The innermost one. A phase whose exception was caught is forgotten when the next one begins.
            self._failed = (self._failed or event["phase"]) if event["event"] == "failed" else None
        on_event(event)

    @property
    def phase(self) -> str:
        """The current phase, or the one in which the process ended."""
        return self._failed or (self.phases[-1] if self.phases else "requests")

    def find(self, name: str) -> Event | None:
        """Return the values of the first event of this name."""
        return next(iter(self.all(name)), None)

    def all(self, name: str) -> list[Event]:
        """Return the values of every event of this name."""
        found = (event for event in self.events if event["event"] == name)
        return [{key: value for key, value in event.items() if key != "event"} for event in found]

    def memory(self) -> Memory:
        """Return its current memory."""
        return memory_of(self._process.pid)

    @property
    def exit_code(self) -> int | None:
        """Its exit code as in a shell: 137 if it was killed; None while it is running."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def printed(self) -> list[str]:
        """Return the lines it printed."""
        return self._printed.read_text(encoding="utf-8", errors="replace").splitlines()

    def reason(self) -> Reason:
        """Return why it ended: the exception that it printed with its location, or the meaning of its exit code."""
        reason = reason_in(self.printed())
        if reason.certain or self.exit_code in (None, 0, 1):
            return reason
        kills_now = kills()
        if kills_now is not None and self._kills_before is not None and kills_now > self._kills_before:
            return Reason(f"the process was killed for memory while loading (exit code 137, phase: {self.phase})")
        return Reason(f"the process ended while loading (exit code {self.exit_code}, phase: {self.phase})")


@contextmanager
def started(folder: Path, model_folder: Path, job: Mapping[str, Any]) -> Iterator[WorkerProcess]:
    """Run a process for this job; when the block ends, so do the process and everything that it started.

    Args:
        folder: a private folder to create.
        model_folder: the unpacked archive, its working folder.
        job: the job.
    """
    events, task, mark = folder / "events", folder / "job.json", str(folder)
    folder.mkdir()
    job = {**job, "folder": str(model_folder), "events": str(events), "package": str(PACKAGE)}
    with (folder / "printed").open("wb") as printed:
        task.write_text(json.dumps({**job, "started": time.time()}), encoding="utf-8")
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
    """Return a worker's environment (util/messages/EnvironmentUtils.java) with the mark of this check."""
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(model_folder)) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TS_DECODE_INPUT_REQUEST": "true", MARK: mark}


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    if process.stdin:
        process.stdin.close()  # it waits for this, then closes its handler
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    end_marked(mark)
