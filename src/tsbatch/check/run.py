"""The check itself: unpack, load in a fresh process, ask, load a second time beside it, and draw conclusions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from tsbatch.archive.model_store import ModelSource
from tsbatch.archive.writer import sha256
from tsbatch.check import advice
from tsbatch.check.findings import Failure, Phase, Report
from tsbatch.check.phases import ORDER
from tsbatch.check.samples import Sample
from tsbatch.check.supervisor import Event, WorkerProcess, started
from tsbatch.check.unpacked_archive import size_of, unpacked
from tsbatch.errors import LoadError
from tsbatch.serving import load_times
from tsbatch.serving.load_remedies import remedy
from tsbatch.serving.worker_log import Reason
from tsbatch.system.process_memory import Memory, available
from tsbatch.worker.cpu_cores import usable_cores

Tell = Callable[[str], None]

SECONDS = 3600
"""For loading and for everything that is asked, each; a handler that hangs ends then."""

TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_LINES = 25
LONGEST_LINE = 200
"""Characters that tell one exception's line from another's."""


def check(
    archive: Path,
    *,
    samples: list[Sample] | None = None,
    max_batch: int | None = None,
    second_worker: bool = True,
    seconds: float = SECONDS,
    tell: Tell = lambda _: None,
) -> Report:
    """Load an archive as a worker does, ask it, and report.

    Args:
        archive: the ``.mar``, ``.tar.gz`` or folder.
        samples: the requests to ask, from :func:`tsbatch.check.samples.read`; None for those of a ready-made task.
        max_batch: the largest batch to time; the archive's batchSize when left out.
        second_worker: load a second time beside it, to see what another worker costs.
        seconds: how long the load and the questions may take.
        tell: told what is being done.

    Raises:
        UsageError: it is no archive.
    """
    source = ModelSource.parse(archive)
    report = Report(archive=archive, name=source.name, version=source.version)
    state, began = _state(source.path), time.perf_counter()
    tell("unpacking")
    try:
        with unpacked(source.path) as (work, folder):
            report.phases.append(Phase("unpack", time.perf_counter() - began))
            report.bytes = size_of(folder)
            _run(report, work, folder, samples, max_batch, second_worker=second_worker, seconds=seconds, tell=tell)
    except LoadError as error:
        report.failure = Failure(str(error), remedy(str(error)), "unpack")
    # Last, since a file that was just read unpacks faster.
    if source.path.is_file() and _state(source.path) == state:
        report.sha256 = sha256(source.path)
    if report.startup_timeout is not None:
        load_times.remember(source.path, report.load_seconds, report.startup_timeout.value)
    return report


def _state(archive: Path) -> tuple[int, int, int]:
    """What differs once an archive was written anew."""
    about = archive.stat()
    return about.st_ino, about.st_size, about.st_mtime_ns


def _run(
    report: Report,
    work: Path,
    folder: Path,
    samples: list[Sample] | None,
    max_batch: int | None,
    *,
    second_worker: bool,
    seconds: float,
    tell: Tell,
) -> None:
    job = {"where": str(report.archive), "samples": samples, "max_batch": max_batch, "probe": True}
    with ExitStack() as processes:
        first = processes.enter_context(started(_room(work, "first"), folder, job))
        if not first.wait(lambda event: _follow(event, tell), seconds=seconds):
            _ended_early(report, first)
            return
        _take(report, first)
        report.memory.append(first.memory())
        if second_worker:
            _load_second(report, processes, work, folder, job, seconds=seconds, tell=tell)
            report.memory[0] = first.memory()  # what both map is shared now
        report.workers = _workers_advice(report)


def _load_second(
    report: Report,
    processes: ExitStack,
    work: Path,
    folder: Path,
    job: dict[str, Any],
    *,
    seconds: float,
    tell: Tell,
) -> None:
    needed, free = report.memory[0].private, available()
    if needed > free:
        report.notes.append(
            f"a second worker was not loaded: it may need {needed / advice.MEGABYTE:.0f} MB and "
            f"{free / advice.MEGABYTE:.0f} MB are available"
        )
        return
    tell("loading a second worker")
    second = processes.enter_context(started(_room(work, "second"), folder, {**job, "probe": False}))
    if second.wait(lambda _: None, seconds=seconds):
        report.memory.append(second.memory())
        _take_gpu(report, second)
    else:
        report.findings.append(f"a second worker does not load beside the first: {second.reason()}")


def _room(work: Path, name: str) -> Path:
    folder = work / name
    folder.mkdir()
    return folder


def _follow(event: Event, tell: Tell) -> None:
    if event["event"] == "begin":
        tell(f"loading: {event['phase']}")
    elif event["event"] == "step":
        tell(f"measuring {event['what']}")
    elif event["event"] == "sample":
        tell("asking the samples")


def _ended_early(report: Report, process: WorkerProcess) -> None:
    reason = process.reason()
    for event in process.events:
        if event["event"] in ("end", "failed"):
            report.phases = [*report.phases[:1], *_phases(event["seconds"], process)]
    if process.find("loaded") is None:
        report.failure = _failure(reason, process)
        return
    # It loaded, and a request ended it: what a worker would do to everyone in the batch.
    _take(report, process)
    report.findings.append(f"a request ended the process: {reason}")


def _failure(reason: Reason, process: WorkerProcess) -> Failure:
    shown = _traceback_of(reason.text, process.printed())
    return Failure(reason.text, remedy(reason.text), process.phase, tuple(shown[-TRACEBACK_LINES:]))


def _traceback_of(cause: str, lines: list[str]) -> list[str]:
    """The traceback that ends with the cause; all that was printed when there is none."""
    found: list[str] = []
    for line in lines:
        if line.startswith(TRACEBACK):
            found = []
        found.append(line)
        if line and not line[0].isspace() and cause.startswith(line[:LONGEST_LINE]) and found[0].startswith(TRACEBACK):
            return found
    return lines


def _take(report: Report, process: WorkerProcess) -> None:
    """What the process told, into the report."""
    loaded = process.find("loaded")
    assert loaded is not None
    report.about = {key: value for key, value in loaded.items() if key not in ("event", "phases")}
    report.phases = [*report.phases[:1], *_phases(loaded["phases"], process)]
    report.samples = process.all("sample")
    report.service = process.all("service")
    report.isolation = process.all("isolation")
    report.invariance = next(iter(process.all("invariance")), None)
    report.unable = [f"{one['what']}: {one['why']}" for one in process.all("unable")]
    report.notes += _notes(report)
    report.conclude(cores=usable_cores())
    report.imports = (process.find("done") or {}).get("imports", {})
    _take_gpu(report, process)


def _notes(report: Report) -> list[str]:
    found = []
    if report.about["own_batch_size"] is None:
        found.append(
            "the archive sets no batchSize: TorchServe makes no batches (batchSize 1) unless it is told when "
            "registering"
        )
    if ModelSource.parse(report.archive).requirements:
        found.append(
            "the archive has requirements: a server installs them only with install_py_dep_per_model=true; "
            "here the packages of this environment were used"
        )
    return found


def _take_gpu(report: Report, process: WorkerProcess) -> None:
    done = process.find("done")
    if done is not None and done["gpu"] is not None:
        report.gpu.append(done["gpu"])


def _phases(seconds: dict[str, float], process: WorkerProcess) -> list[Phase]:
    ends = {event["phase"]: event for event in process.events if event["event"] in ("end", "failed")}
    found = []
    for name, spent in seconds.items():
        end = ends.get(name, {})
        found.append(Phase(name, spent, end.get("resident"), end.get("peak")))
    return sorted(found, key=lambda phase: ORDER.index(phase.name) if phase.name in ORDER else len(ORDER))


def _workers_advice(report: Report) -> advice.Advice:
    first = report.memory[0]
    second = report.memory[1] if len(report.memory) > 1 else None
    gpu = None
    if len(report.gpu) > 1:
        each = max(1, report.gpu[0]["free"] - report.gpu[1]["free"])
        gpu = 2 + int(report.gpu[1]["free"] / each)
    return advice.workers(first, second, available=_free_without(report.memory), cores=usable_cores(), gpu=gpu)


def _free_without(memory: list[Memory]) -> int:
    """Bytes available once the processes of the check have ended."""
    return min(available() + sum(one.private for one in memory), psutil.virtual_memory().total)
