"""Find out from TorchServe's growing logs why a worker died.

TorchServe restarts a failed worker for 300 seconds and tells the client only "Worker died". ``ts_log.log`` reports the
death and ``model_log.log`` has the traceback that the worker printed; both name the worker's thread,
``W-9000-NAME_VERSION``::

    2026-11-29T17:55:06,373 [INFO ] W-9001-m_1.0-stdout MODEL_LOG - ValueError: the weights are wrong
    2026-11-29T17:55:06,385 [WARN ] W-9001-m_1.0 org.pytorch.serve.wlm.BatchAggregator - Load model failed: m, …
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tsbatch.system.process_memory import kills

SERVER_LOG = "ts_log.log"
MODEL_LOG = "model_log.log"
MAX_LINES = 1000

LINE = re.compile(r"^\S+ \[\w+ *\] (?P<thread>\S.*?) (?P<logger>[\w.]+) - (?P<text>.*)$")
WORKER = re.compile(r"(?P<worker>W-(?P<port>\d+)-(?P<model>.+?))(?P<stream>-stdout|-stderr)?")
"""The name of a worker's thread; ``model`` is NAME_VERSION, and both may contain underscores."""
DEATH = re.compile(
    r"Load model failed: |(?<!SCALED_DOWN) -> WORKER_STOPPED$|Backend worker error|Worker startup time ?out",
    re.IGNORECASE,
)
TIMED_OUT = "did not respond in given time"
FIRST_LINE = "s_name_part0="
REJECTED = re.compile(r"Failed to load model: (?P<file>.+)$")

EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::(?P<message>.*))?$")
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)(, in |$)')
"""A frame of a traceback; a SyntaxError names its file and line in the same way, without a function."""
IN_ARCHIVE = re.compile(r"[\\/]models[\\/][0-9a-f]{8,}[\\/](?P<inside>.+)$")
"""A file of an unpacked archive, which TorchServe puts below ``models`` in its temporary folder."""
MAX_LENGTH = 600
"""In characters; the error of a state dict that does not fit lists all of its keys."""
TSBATCH_ERROR = "tsbatch.errors."
SECONDARY = re.compile(r"^(RuntimeError: \d{3} - |ModuleNotFoundError: No module named 'ts\.torch_handler\.)")
"""Errors that TorchServe raises after the real one (ts/model_service_worker.py, ts/model_loader.py)."""

KILLED = "the worker was killed while loading because memory ran out"

WARNING = re.compile(r":\d+: \w*Warning: ")
ROUTINE = (
    "[PID]",
    "Torch worker started",
    "Python runtime",
    "Connection accepted",
    "Listening on port",
    "Successfully loaded ",
    "model_name: ",
    "OpenVINO is not enabled",
    "OpenVINO backend enabled",
    "ONNX enabled",
    "Enabled tensor cores",
    "proceeding without onnxruntime",
    "Torch TensorRT not enabled",
    "s_name_part0",
    "Backend worker process died",
    "[METRICS]",
)
"""Beginnings of the lines that every worker prints."""


@dataclass(slots=True)
class Tail:
    """Read the new lines of a growing file, also after the file was rolled over."""

    path: Path
    offset: int = 0
    rest: bytes = b""

    def lines(self) -> Iterator[str]:
        """Yield the complete lines added since the last call."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.offset:
                    self.offset, self.rest = 0, b""
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return
        self.offset += len(data)
        *whole, self.rest = (self.rest + data).split(b"\n")
        yield from (line.decode("utf-8", "replace").rstrip("\r") for line in whole)

    def skip(self) -> None:
        """Skip the present content."""
        self.offset = self.path.stat().st_size if self.path.exists() else 0


@dataclass(slots=True)
class WorkerRun:
    """The first failed run of a worker, or else its present run: its output, and whether it died."""

    output: dict[str, deque[str]] = field(default_factory=dict)
    died: bool = False
    timed_out: bool = False

    def add(self, stream: str, text: str) -> None:
        """Add a line of the worker's output."""
        if text.startswith(FIRST_LINE) and not self.died:
            self.output.clear()
        self.output.setdefault(stream, deque(maxlen=MAX_LINES)).append(text)

    def reason(self) -> Reason:
        """Return why it ended."""
        return reason_in([line for stream in self.output.values() for line in stream], timed_out=self.timed_out)


class WorkerLog:
    """Follows the logs of one server.

    Args:
        log_dir: the server's log folder.
        from_now: ignore the present content of the logs.
    """

    def __init__(self, log_dir: Path, *, from_now: bool = False) -> None:
        self._server = Tail(log_dir / SERVER_LOG)
        self._model = Tail(log_dir / MODEL_LOG)
        self._runs: dict[str, dict[str, WorkerRun]] = {}
        self._rejected: dict[str, str] = {}
        self._rejecting: str | None = None
        self._failing: WorkerRun | None = None
        self._kills = kills()
        if from_now:
            self._server.skip()
            self._model.skip()

    def died(self, model: str, version: str, ids: Collection[str] | None = None) -> bool:
        """Whether a worker of this model has died since the log is followed.

        Args:
            model: the model's name.
            version: its version.
            ids: the ids of the workers to look at, as in the server's description; None for all. TorchServe restarts
                an unregistered worker once more, in a folder that no longer exists (WorkerThread.retry).
        """
        return bool(self._dead(model, version, ids))

    def reason(self, model: str, version: str, ids: Collection[str] | None = None) -> Reason:
        """Return why it died: the worker's error with file and line, or else its last line of output."""
        reasons = [run.reason() for run in self._dead(model, version, ids)] or [WorkerRun().reason()]
        reason = max(reasons, key=lambda reason: reason.certain)
        # A killed worker prints nothing, and TorchServe does not log its exit code.
        return Reason(KILLED) if not reason.certain and (kills() or 0) > (self._kills or 0) else reason

    def rejected(self) -> dict[str, str]:
        """Return the archives that TorchServe did not load at startup, each with the reason."""
        self._read()
        return dict(self._rejected)

    def _dead(self, model: str, version: str, ids: Collection[str] | None) -> list[WorkerRun]:
        self._read()
        runs = self._runs.get(f"{model}_{version}", {})
        return [run for worker, run in runs.items() if run.died and (ids is None or worker.split("-")[1] in ids)]

    def _read(self) -> None:
        # The death is logged after the last output, so it is read first.
        for line in self._server.lines():
            self._read_server_line(line)
        for line in self._model.lines():
            match = LINE.match(line)
            if match and (worker := WORKER.fullmatch(match["thread"])):
                self._run(worker).add(worker["stream"] or "", match["text"])

    def _read_server_line(self, line: str) -> None:
        match = LINE.match(line)
        if match is None:
            self._read_exception(line)
            return
        self._rejecting, self._failing = None, None
        if rejected := REJECTED.search(match["text"]):
            self._rejecting = Path(rejected["file"]).name
        elif match["logger"] != "MODEL_LOG" and (worker := WORKER.fullmatch(match["thread"])):
            self._failing = self._run(worker)
            self._failing.died |= DEATH.search(match["text"]) is not None

    def _read_exception(self, line: str) -> None:
        # Java's exception follows the line that reports it: "package.Type: message" and then indented frames.
        if self._rejecting is not None and line and not line[0].isspace():
            self._rejected.setdefault(self._rejecting, line.partition(": ")[2] or line)
        elif self._failing is not None:
            self._failing.timed_out |= TIMED_OUT in line

    def _run(self, worker: re.Match[str]) -> WorkerRun:
        return self._runs.setdefault(worker["model"], {}).setdefault(worker["worker"], WorkerRun())


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a worker died.

    Attributes:
        text: the reason in one line.
        certain: whether the worker's output contains an error. TorchServe stops reading when a worker dies, so the last
            lines can be lost; the next worker then fails for the same reason.
        timed_out: whether TorchServe gave up while the worker was still loading.
    """

    text: str
    certain: bool = True
    timed_out: bool = False

    def __str__(self) -> str:
        return self.text


def reason_in(lines: Iterable[str], *, timed_out: bool = False) -> Reason:
    """Find the decisive line in a worker's output.

    Args:
        lines: the output.
        timed_out: whether TorchServe gave up waiting for the worker.
    """
    output = list(lines)
    found = [error for error in errors_in(output) if not SECONDARY.match(error.text)]
    if found:
        return Reason(_decisive(found))
    if timed_out:
        return Reason("loading took longer than its startupTimeout", timed_out=True)
    # A library's warning, and the indented source line that Python prints below it, are not the reason.
    flush_left = [line for line in output if line.strip() and not line[0].isspace() and not WARNING.search(line)]
    relevant = [line.strip() for line in flush_left if not line.startswith(ROUTINE)]
    if relevant:
        return Reason(f"the worker ended; its last output: {relevant[-1]}", certain=False)
    return Reason("the worker ended without output; out of memory, or sys.exit in the handler", certain=False)


def _decisive(found: Sequence[WorkerError]) -> str:
    """Return the last error, or the one that tsbatch's error quotes, which has the file and line."""
    ours = [error for error in found if error.text.startswith(TSBATCH_ERROR)]
    if not ours:
        return _shortened(found[-1].with_location())
    message = ours[-1].text.partition(": ")[2] or ours[-1].text
    for error in reversed(found[: found.index(ours[-1])]):
        kind, _, text = error.text.partition(": ")
        if f"{kind.rpartition('.')[2]}: {text}"[:MAX_LENGTH] in message:
            return _shortened(error.with_location())
    return _shortened(message)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 4]} ..."


@dataclass(frozen=True, slots=True)
class WorkerError:
    """One exception of a traceback: its last line, and the file and line that raised it."""

    text: str
    location: str

    def with_location(self) -> str:
        """Return the error with file and line."""
        return f"{self.text} ({self.location})" if self.location else self.text


def errors_in(lines: Iterable[str]) -> Iterator[WorkerError]:
    """Yield the exceptions whose tracebacks are in these lines, in their order.

    The location is the last frame inside the archive, or else the last frame.
    """
    inside, location, in_archive = False, "", False
    pending: str | None = None
    for line in lines:
        if pending is not None:
            yield WorkerError(f"{pending} {line.strip()}".strip(), location)
            pending = None
        elif line.startswith("Traceback (most recent call last):"):
            inside, location, in_archive = True, "", False
        elif inside and (frame := FRAME.match(line)):
            archived = IN_ARCHIVE.search(frame["file"])
            if archived or not in_archive:
                location, in_archive = _location(frame, archived), archived is not None
        elif inside and (match := EXCEPTION.match(line)):
            inside = False
            if match["message"] is not None and line.endswith(":"):
                pending = line  # the message continues on the next line
            else:
                yield WorkerError(line, location)
    if pending is not None:
        yield WorkerError(pending, location)


def _location(frame: re.Match[str], archived: re.Match[str] | None) -> str:
    file = archived["inside"].replace("\\", "/") if archived else re.split(r"[\\/]", frame["file"])[-1]
    return f"{file}:{frame['line']}"
