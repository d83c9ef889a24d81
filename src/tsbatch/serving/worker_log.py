"""What a worker said before it died, read from TorchServe's logs while they grow.

TorchServe starts a failed worker again and again for 300 seconds and tells the client no more than "Worker
died". The reason stands in ``model_log.log`` as the traceback the worker printed, and the death itself in
``ts_log.log``; both name the worker's thread, ``W-9000-NAME_VERSION``::

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
LINES_KEPT = 1000

LINE = re.compile(r"^\S+ \[\w+ *\] (?P<thread>\S.*?) (?P<logger>[\w.]+) - (?P<text>.*)$")
WORKER = re.compile(r"^(?P<worker>W-\d+-(?P<model>.+?))(?P<stream>-stdout|-stderr)?$")
DEATH = re.compile(
    r"Load model failed: |(?<!SCALED_DOWN) -> WORKER_STOPPED$|Backend worker error|Worker startup time ?out",
    re.IGNORECASE,
)
TIMED_OUT = "did not respond in given time"
LIFE_BEGINS = "s_name_part0="
REFUSED = re.compile(r"Failed to load model: (?P<file>.+)$")

EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::(?P<message>.*))?$")
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)(, in |$)')
"""A frame of a traceback; a SyntaxError names its place in the same way, without a function."""
OWN = re.compile(r"[\\/]models[\\/][0-9a-f]{8,}[\\/](?P<inside>.+)$")
"""A file of the unpacked archive: TorchServe unpacks below its temporary folder's ``models``."""
LONGEST = 600
"""Characters of a reason; a state dict that does not fit names every key it has."""
OURS = "tsbatch.errors."
SECOND_HAND = re.compile(r"^(RuntimeError: \d{3} - |ModuleNotFoundError: No module named 'ts\.torch_handler\.)")
"""What TorchServe raises itself after the real error (ts/model_service_worker.py, ts/model_loader.py)."""

KILLED = "the worker was killed for memory while it loaded"

WARNING = re.compile(r":\d+: \w*Warning: ")
CHATTER = (
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
"""How the lines begin that every worker prints."""


@dataclass(slots=True)
class Tail:
    """The lines that a growing file gained since it was last read; follows it when it is rolled over."""

    path: Path
    offset: int = 0
    rest: bytes = b""

    def lines(self) -> Iterator[str]:
        """The new whole lines."""
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
        """Leave out what is there now."""
        self.offset = self.path.stat().st_size if self.path.exists() else 0


@dataclass(slots=True)
class Life:
    """What the logs say about the first life of one worker that ended, or else its present life."""

    words: dict[str, deque[str]] = field(default_factory=dict)
    died: bool = False
    timed_out: bool = False

    def hear(self, stream: str, text: str) -> None:
        """Take a line the worker printed."""
        if text.startswith(LIFE_BEGINS) and not self.died:
            self.words.clear()
        self.words.setdefault(stream, deque(maxlen=LINES_KEPT)).append(text)

    def reason(self) -> Reason:
        """Why it ended."""
        return reason_in([line for stream in self.words.values() for line in stream], timed_out=self.timed_out)


class WorkerLog:
    """Follows the logs of one server.

    Args:
        log_dir: the server's log folder.
        from_now: leave out what the logs hold already.
    """

    def __init__(self, log_dir: Path, *, from_now: bool = False) -> None:
        self._server = Tail(log_dir / SERVER_LOG)
        self._model = Tail(log_dir / MODEL_LOG)
        self._lives: dict[str, dict[str, Life]] = {}
        self._refused: dict[str, str] = {}
        self._refusing: str | None = None
        self._failing: Life | None = None
        self._kills = kills()
        if from_now:
            self._server.skip()
            self._model.skip()

    def died(self, model: str, version: str, ids: Collection[str] | None = None) -> bool:
        """Whether a worker of this model has died since this log is followed.

        Args:
            model: the model's name.
            version: its version.
            ids: the workers that count, by the ids that the server describes them with; None for all. One that was
                unregistered is started once more, in a folder that is gone by then (WorkerThread.retry).
        """
        return bool(self._dead(model, version, ids))

    def reason(self, model: str, version: str, ids: Collection[str] | None = None) -> Reason:
        """Why it died: the error the worker reported with its place, or the last thing it said."""
        reasons = [life.reason() for life in self._dead(model, version, ids)] or [Life().reason()]
        reason = max(reasons, key=lambda reason: reason.certain)
        # A killed worker has no last word, and TorchServe keeps its exit code to itself.
        return Reason(KILLED) if not reason.certain and (kills() or 0) > (self._kills or 0) else reason

    def refused(self) -> dict[str, str]:
        """The archives that TorchServe did not take when it started, each with its reason."""
        self._read()
        return dict(self._refused)

    def _dead(self, model: str, version: str, ids: Collection[str] | None) -> list[Life]:
        self._read()
        lives = self._lives.get(f"{model}_{version}", {})
        return [life for worker, life in lives.items() if life.died and (ids is None or worker.split("-")[1] in ids)]

    def _read(self) -> None:
        # The death is written after the last words, so it is read before them.
        for line in self._server.lines():
            self._take_server(line)
        for line in self._model.lines():
            self._take_model(line)

    def _take_server(self, line: str) -> None:
        match = LINE.match(line)
        if match is None:
            self._take_exception(line)
            return
        self._refusing, self._failing = None, None
        if refused := REFUSED.search(match["text"]):
            self._refusing = Path(refused["file"]).name
        elif match["logger"] != "MODEL_LOG" and (worker := WORKER.match(match["thread"])):
            self._failing = self._life(worker)
            self._failing.died |= DEATH.search(match["text"]) is not None

    def _take_exception(self, line: str) -> None:
        # Java's exception follows the line that reports it: "package.Type: message", then indented frames.
        if self._refusing is not None and line and not line[0].isspace():
            self._refused.setdefault(self._refusing, line.partition(": ")[2] or line)
        elif self._failing is not None:
            self._failing.timed_out |= TIMED_OUT in line

    def _take_model(self, line: str) -> None:
        match = LINE.match(line)
        if match and (worker := WORKER.match(match["thread"])):
            self._life(worker).hear(worker["stream"] or "", match["text"])

    def _life(self, worker: re.Match[str]) -> Life:
        return self._lives.setdefault(worker["model"], {}).setdefault(worker["worker"], Life())


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a worker died; not certain when no error stands in what is left of its words.

    Attributes:
        text: the reason, in one line.
        certain: whether the worker said it itself.
        timed_out: whether it was still loading when TorchServe gave up.

    TorchServe stops listening to a worker as soon as it is dead, so its last lines are sometimes lost; then
    the next worker, which fails in the same way, says it.
    """

    text: str
    certain: bool = True
    timed_out: bool = False

    def __str__(self) -> str:
        return self.text


def reason_in(lines: Iterable[str], *, timed_out: bool = False) -> Reason:
    """The decisive line of a worker's last words.

    Args:
        lines: what the worker printed.
        timed_out: whether TorchServe gave up waiting for it.
    """
    words = list(lines)
    found = [error for error in errors_in(words) if not SECOND_HAND.match(error.text)]
    if found:
        return Reason(_decisive(found))
    if timed_out:
        return Reason("loading took longer than its startupTimeout", timed_out=True)
    # A library's warning and the indented source line that Python prints below it are no reason.
    spoken = [line for line in words if line.strip() and not line[0].isspace() and not WARNING.search(line)]
    said = [line.strip() for line in spoken if not line.startswith(CHATTER)]
    if said:
        return Reason(f"the worker ended; its last words: {said[-1]}", certain=False)
    return Reason("the worker ended without a word; out of memory, or sys.exit in the handler", certain=False)


def _decisive(found: Sequence[WorkerError]) -> str:
    """The last error, or the one that an error of ours was made of, since that one has a place."""
    last = found[-1]
    ours = [error for error in found if error.text.startswith(OURS)]
    if not ours:
        return _short(last.with_place())
    message = ours[-1].text.partition(": ")[2] or ours[-1].text
    for error in reversed(found[: found.index(ours[-1])]):
        kind, _, said = error.text.partition(": ")
        if f"{kind.rpartition('.')[2]}: {said}"[:LONGEST] in message:
            return _short(error.with_place())
    return _short(message)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


@dataclass(frozen=True, slots=True)
class WorkerError:
    """One exception of a traceback: its last line, and the file and line that raised it."""

    text: str
    place: str

    def with_place(self) -> str:
        """The error and where it was raised."""
        return f"{self.text} ({self.place})" if self.place else self.text


def errors_in(lines: Iterable[str]) -> Iterator[WorkerError]:
    """Every exception whose traceback stands in these lines, in the order they were printed.

    Its place is the last frame inside the archive, or else the last one.
    """
    inside, place, own = False, "", False
    pending: str | None = None
    for line in lines:
        if pending is not None:
            yield WorkerError(f"{pending} {line.strip()}".strip(), place)
            pending = None
        elif line.startswith("Traceback (most recent call last):"):
            inside, place, own = True, "", False
        elif inside and (frame := FRAME.match(line)):
            archived = OWN.search(frame["file"])
            if archived or not own:
                place, own = _place(frame, archived), archived is not None
        elif inside and (match := EXCEPTION.match(line)):
            inside = False
            if match["message"] is not None and line.endswith(":"):
                pending = line  # the message goes on in the next line
            else:
                yield WorkerError(line, place)
    if pending is not None:
        yield WorkerError(pending, place)


def _place(frame: re.Match[str], archived: re.Match[str] | None) -> str:
    file = archived["inside"].replace("\\", "/") if archived else re.split(r"[\\/]", frame["file"])[-1]
    return f"{file}:{frame['line']}"
