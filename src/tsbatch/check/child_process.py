"""The fresh process that loads an archive as a worker does, and tells what happens, phase by phase.

Run as a file, like ``ts/model_service_worker.py``: the working folder is the unpacked archive, which also stands first
on the import path. It gets one argument, a file with its job, and adds one JSON object a line to the job's file of
events. What the handler prints goes where it would go in a worker; when the load fails, so does its traceback.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's own folder; TorchServe's worker takes its own away too

import importlib
import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PYTHON = "python"
"""The phase before a worker is told what to load: Python, torch and TorchServe's own modules."""


class Events:
    """Tells the parent what happens.

    Args:
        path: the file that the events are added to, one JSON object a line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, event: str, **values: Any) -> None:
        """Add one event."""
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"event": event, **values}) + "\n")


def main(job_file: str) -> int:
    """Load, measure what the job asks for, and stay until the parent is done; the exit code."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    events = Events(Path(job["events"]))
    with _installed_tsbatch(job["package"]):
        from tsbatch.check import phases, probes  # noqa: F401 - before an archive's own tsbatch comes and goes
    try:
        runner = _load(job, events)
    except BaseException as error:
        traceback.print_exception(_from_the_archive_on(error, job["folder"]))
        return 1
    with runner:
        _measure(runner, job, events)
        events.tell("done", gpu=gpu_memory(), imports=imported(job["folder"]))
        sys.stdin.read()  # the parent looks at this process's memory, and closes the pipe
    return 0


def _from_the_archive_on(error: BaseException, folder: str) -> BaseException:
    """The error without the frames that led to the archive's code, and so for those that it came from."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        frame = one.__traceback__
        while frame is not None and not frame.tb_frame.f_code.co_filename.startswith(folder):
            frame = frame.tb_next
        one.__traceback__ = frame or one.__traceback__
        one = one.__cause__ or one.__context__
    return error


@contextmanager
def _installed_tsbatch(package: str) -> Iterator[None]:
    """Import tsbatch from ``package``, even if the archive brings its own (``--bundle``), which may be another version.

    The handler still gets the archive's own: whatever can be imported from the archive is kept apart while it works
    (tsbatch.emulation.worker_environment).
    """
    parent = str(Path(package).parent)
    sys.path.insert(0, parent)
    try:
        yield
    finally:
        sys.path.remove(parent)
        importlib.invalidate_caches()


def _measure(runner: Any, job: dict[str, Any], events: Events) -> None:
    from tsbatch.emulation.client_request import Call

    if job["probe"]:
        from tsbatch.check import probes

        probes.run(runner, job, events.tell)
    else:
        runner.predict_one(Call(b""))  # what every request touches is touched; the answer does not matter


def _load(job: dict[str, Any], events: Events) -> Any:
    from tsbatch.check.phases import PhaseClock, watching_load

    memory = _memory_reader()
    clock = PhaseClock(
        lambda name: events.tell("begin", phase=name),
        lambda name: events.tell("end", phase=name, seconds=clock.seconds, **memory()),
        lambda name: events.tell("failed", phase=name, seconds=clock.seconds, **memory()),
    )
    with _python_phase(clock, job):
        from tsbatch.emulation.model_loader import plan_of_folder, require_torchserve
        from tsbatch.emulation.runner import HandlerRunner
        from tsbatch.settings import MAX_RESPONSE_SIZE

        require_torchserve()
    gpu = _start_gpu(clock)
    plan = plan_of_folder(Path(job["folder"]), Path(job["where"]), None)
    size = job["max_batch"] or plan.batch_size
    gpu = None if plan.config.get("deviceType") == "cpu" else gpu
    began = time.perf_counter()
    with watching_load(clock):
        runner = HandlerRunner(plan, batch_size=size, gpu_id=gpu, max_response_size=MAX_RESPONSE_SIZE)
    events.tell("loaded", seconds=time.perf_counter() - began, phases=clock.seconds, **_about(runner, plan))
    return runner


@contextmanager
def _python_phase(clock: Any, job: dict[str, Any]) -> Iterator[None]:
    with clock.phase(PYTHON):
        yield
    # It began before anything of ours ran.
    clock.seconds[PYTHON] = max(clock.seconds[PYTHON], time.time() - job["started"])


def _about(runner: Any, plan: Any) -> dict[str, Any]:
    import torch

    from tsbatch.check.probes import is_ours

    keys = {"minWorkers": "workers", "startupTimeout": "startup_timeout", "responseTimeout": "response_timeout"}
    return {
        "model": runner.model_name,
        "handler": getattr(runner.handler, "__name__", type(runner.handler).__name__),
        "is_ours": is_ours(runner.handler),
        "batch_size": runner.batch_size,
        "own_batch_size": plan.batch_size,
        "threads": torch.get_num_threads(),
        **{ours_: plan.config.get(theirs) for theirs, ours_ in keys.items()},
    }


def imported(folder: str) -> dict[str, str]:
    """Installed package: version, of all that this process has imported but tsbatch and what lies in the archive."""
    from importlib.metadata import packages_distributions, version

    loaded = ((name, str(getattr(module, "__file__", None))) for name, module in list(sys.modules.items()))
    tops = {name.partition(".")[0] for name, file in loaded if not file.startswith(folder)}
    homes = packages_distributions()
    return {home: version(home) for home in sorted({home for top in tops for home in homes.get(top, ())} - {"tsbatch"})}


def _memory_reader() -> Any:
    import os

    from tsbatch.system.process_memory import resident_and_peak

    return lambda: dict(zip(("resident", "peak"), resident_and_peak(os.getpid()), strict=True))


def _start_gpu(clock: Any) -> int | None:
    """The GPU that TorchServe assigns first, its CUDA context made in a phase of its own; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    with clock.phase("CUDA context"):
        torch.zeros(1, device="cuda:0")
    return 0


def gpu_memory() -> dict[str, int] | None:
    """Bytes free on the GPU, of how many, and held by this process's tensors; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    return {"free": free, "total": total, "reserved": torch.cuda.memory_reserved(0)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
