"""Check an archive: unpack it, load it in a fresh process, send requests, and load it a second time."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psutil

from tsbatch.archive.model_store import ModelSource, link_or_copy
from tsbatch.archive.writer import sha256
from tsbatch.check import advice
from tsbatch.check.findings import Failure, Phase, Report
from tsbatch.check.phases import ORDER
from tsbatch.check.samples import Sample
from tsbatch.check.supervisor import Event, WorkerProcess, started
from tsbatch.emulation.worker_environment import unpack
from tsbatch.errors import LoadError
from tsbatch.serving import load_times
from tsbatch.serving.load_remedies import remedy
from tsbatch.serving.worker_log import Reason
from tsbatch.system.process_memory import Memory, available
from tsbatch.worker.cpu_cores import usable_cores

OnProgress = Callable[[str], None]

SECONDS = 3600
"""Limit for loading and testing, in each process; a handler that hangs is killed then."""

TRACEBACK = "Traceback (most recent call last):"
TRACEBACK_LINES = 25
EXCEPTION_PREFIX = 200
"""Characters that are enough to recognize an exception's line."""


def check(
    archive: Path,
    *,
    samples: list[Sample] | None = None,
    max_batch: int | None = None,
    second_worker: bool = True,
    seconds: float = SECONDS,
    on_progress: OnProgress = lambda _: None,
) -> Report:
    """Load an archive as a worker does, send it requests, and report the results.

    Args:
        archive: the ``.mar``, ``.tar.gz`` or folder.
        samples: the requests, from :func:`tsbatch.check.samples.read`; None for the handler's own examples.
        max_batch: the largest batch to time; None for the archive's batchSize.
        second_worker: load it a second time beside the first, to measure the cost of another worker.
        seconds: time limit for loading and testing.
        on_progress: called with a line about each step.

    Raises:
        UsageError: it is not an archive.
    """
    source = ModelSource.parse(archive)
    report = Report(archive=archive, name=source.name, version=source.version)
    state, start = _state(source.path), time.perf_counter()
    on_progress("unpacking")
    try:
        with unpacked(source.path) as (work, folder), ExitStack() as processes:
            report.phases.append(Phase("unpack", time.perf_counter() - start))
            report.bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            job = {"where": str(archive), "samples": samples, "max_batch": max_batch}
            first = processes.enter_context(started(work / "first", folder, {**job, "probe": True}))
            if first.wait(partial(_show_event, on_progress), seconds=seconds):
                _take(report, first)
                report.memory.append(first.memory())
                if second_worker and _is_room_for_second(report):
                    on_progress("loading a second worker")
                    second = processes.enter_context(started(work / "second", folder, {**job, "probe": False}))
                    _take_second(report, second, seconds)
                    report.memory[0] = first.memory()  # memory that both map counts as shared now
                report.workers = _workers_advice(report)
            else:
                _take_early_end(report, first)
    except LoadError as error:
        report.failure = Failure(str(error), remedy(str(error)), "unpack")
    # Last, since a file that was just read unpacks faster.
    if source.path.is_file() and _state(source.path) == state:
        report.sha256 = sha256(source.path)
    if report.startup_timeout is not None:
        load_times.remember(source.path, report.load_seconds, report.startup_timeout.value)
    return report


def _state(archive: Path) -> tuple[int, int, int]:
    """Return what changes when an archive is written again."""
    status = archive.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def unpacked(archive: Path) -> Iterator[tuple[Path, Path]]:
    """Unpack an archive as TorchServe does, to ``models/<32 hexadecimal digits>`` below a temporary folder.

    Yields the temporary folder and the model's folder in it; both are removed when the block ends. A folder is linked,
    not copied, as TorchServe does with one in its model store (archive/model/ModelArchive.java).

    Raises:
        LoadError: it cannot be unpacked; the message says why.
    """
    work = Path(tempfile.mkdtemp(prefix="tsbatch-check-")).resolve()
    try:
        target = work / "models" / uuid.uuid4().hex
        target.parent.mkdir()
        if archive.is_dir():
            link_or_copy(archive, target)
        else:
            target.mkdir()
            unpack(archive, target)
        yield work, target
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _show_event(on_progress: OnProgress, event: Event) -> None:
    if event["event"] == "begin":
        on_progress(f"loading: {event['phase']}")
    elif event["event"] == "step":
        on_progress(f"measuring {event['what']}")
    elif event["event"] == "sample":
        on_progress("sending the samples")


def _take(report: Report, process: WorkerProcess) -> None:
    """Take over the events of a process that has loaded the archive."""
    loaded = process.find("loaded")
    assert loaded is not None
    report.about = {key: value for key, value in loaded.items() if key != "phases"}
    report.phases = [*report.phases[:1], *_phases(loaded["phases"], process)]
    report.samples = process.all("sample")
    report.service = process.all("service")
    report.isolation = process.all("isolation")
    report.invariance = process.find("invariance")
    report.unable = [f"{event['what']}: {event['why']}" for event in process.all("unable")]
    report.notes += _notes(report)
    report.conclude(cores=usable_cores())
    report.imports = (process.find("done") or {}).get("imports", {})
    _take_gpu(report, process)


def _take_second(report: Report, process: WorkerProcess, seconds: float) -> None:
    if process.wait(lambda _: None, seconds=seconds):
        report.memory.append(process.memory())
        _take_gpu(report, process)
    else:
        report.findings.append(f"a second worker does not load beside the first: {process.reason().text}")


def _take_gpu(report: Report, process: WorkerProcess) -> None:
    done = process.find("done")
    if done is not None and done["gpu"] is not None:
        report.gpu.append(done["gpu"])


def _take_early_end(report: Report, process: WorkerProcess) -> None:
    """Take over the events of a process that ended before its job was done."""
    reason = process.reason()
    for event in process.events:
        if event["event"] in ("end", "failed"):
            report.phases = [*report.phases[:1], *_phases(event["seconds"], process)]
    if process.find("loaded") is None:
        report.failure = _failure(reason, process)
        return
    # It loaded, and a request ended it. In a worker that would fail every request of the batch.
    _take(report, process)
    report.findings.append(f"a request ended the process: {reason.text}")


def _failure(reason: Reason, process: WorkerProcess) -> Failure:
    lines = _traceback_of(reason.text, process.printed())
    return Failure(reason.text, remedy(reason.text), process.phase, tuple(lines[-TRACEBACK_LINES:]))


def _traceback_of(cause: str, lines: list[str]) -> list[str]:
    """Return the traceback that ends with the cause, or all lines if there is none."""
    found: list[str] = []
    for line in lines:
        if line.startswith(TRACEBACK):
            found = []
        found.append(line)
        is_cause = line and not line[0].isspace() and cause.startswith(line[:EXCEPTION_PREFIX])
        if is_cause and found[0].startswith(TRACEBACK):
            return found
    return lines


def _phases(seconds: dict[str, float], process: WorkerProcess) -> list[Phase]:
    ends = {event["phase"]: event for event in process.events if event["event"] in ("end", "failed")}
    found = []
    for name, spent in seconds.items():
        end = ends.get(name, {})
        found.append(Phase(name, spent, end.get("resident"), end.get("peak")))
    return sorted(found, key=lambda phase: ORDER.index(phase.name) if phase.name in ORDER else len(ORDER))


def _notes(report: Report) -> Iterator[str]:
    if report.about["own_batch_size"] is None:
        yield (
            "the archive sets no batchSize: TorchServe makes no batches (batchSize 1) unless the registration gives one"
        )
    if ModelSource.parse(report.archive).requirements:
        yield (
            "the archive has requirements: a server installs them only with install_py_dep_per_model=true; this check "
            "used the packages of this environment"
        )


def _is_room_for_second(report: Report) -> bool:
    needed, free = report.memory[0].private, available()
    if needed > free:
        report.notes.append(
            f"a second worker was not loaded: it may need {needed / advice.MEGABYTE:.0f} MB, but only "
            f"{free / advice.MEGABYTE:.0f} MB are available"
        )
    return needed <= free


def _workers_advice(report: Report) -> advice.Advice:
    first, *others = report.memory
    gpu = None
    if len(report.gpu) > 1:
        each = max(1, report.gpu[0]["free"] - report.gpu[1]["free"])
        gpu = 2 + int(report.gpu[1]["free"] / each)
    second = others[0] if others else None
    return advice.workers(first, second, available=_free_without(report.memory), cores=usable_cores(), gpu=gpu)


def _free_without(memory: list[Memory]) -> int:
    """Return the bytes that are available when the processes of the check have ended."""
    return min(available() + sum(each.private for each in memory), psutil.virtual_memory().total)
