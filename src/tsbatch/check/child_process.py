"""The fresh process that loads an archive as a worker does, and reports its progress phase by phase.

Run as a file, like ``ts/model_service_worker.py``: the working folder is the unpacked archive, which is also first on
the import path. The only argument is a file with the job; the process appends one JSON object per line to the job's
file of events. The handler's output goes where it would go in a worker; if the load fails, so does its traceback.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's own folder; TorchServe's worker removes its own too

import importlib
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

PYTHON = "python"
"""The phase before a worker gets the load command: Python, torch and TorchServe's own modules."""

Send = Callable[..., None]
"""Takes an event's name and its values."""


def main(job_file: str) -> int:
    """Load, measure what the job asks for, and wait until the parent is done; return the exit code."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    send = partial(_append_event, Path(job["events"]))
    with _installed_tsbatch(job["package"]):  # before an archive's own tsbatch comes and goes
        from tsbatch.check import phases, probes  # noqa: F401
        from tsbatch.emulation.client_request import Call
    try:
        runner = _load(job, send)
    except BaseException as error:
        traceback.print_exception(_from_the_archive_on(error, job["folder"]))
        return 1
    with runner:
        if job["probe"]:
            probes.run(runner, job, send)
        else:
            runner.predict_one(Call(b""))  # uses the memory that every request uses; the answer does not matter
        send("done", gpu=gpu_memory(), imports=imported(job["folder"]))
        sys.stdin.read()  # the parent measures this process's memory, then closes the pipe
    return 0


def _append_event(path: Path, event: str, **values: Any) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({"event": event, **values}) + "\n")


def _from_the_archive_on(error: BaseException, folder: str) -> BaseException:
    """Remove the frames that led to the archive's code from the error and from its causes."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frame = current.__traceback__
        while frame is not None and not frame.tb_frame.f_code.co_filename.startswith(folder):
            frame = frame.tb_next
        current.__traceback__ = frame or current.__traceback__
        current = current.__cause__ or current.__context__
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


def _load(job: dict[str, Any], send: Send) -> Any:
    from tsbatch.check.phases import PhaseClock, watching_load
    from tsbatch.system.process_memory import resident_and_peak

    def on_change(event: str, phase: str) -> None:
        if event == "begin":
            send(event, phase=phase)
        else:
            resident, peak = resident_and_peak(os.getpid())
            send(event, phase=phase, seconds=clock.seconds, resident=resident, peak=peak)

    clock = PhaseClock(on_change)
    with clock.phase(PYTHON):
        from tsbatch.emulation.model_loader import plan_of_folder, require_torchserve
        from tsbatch.emulation.runner import HandlerRunner
        from tsbatch.settings import MAX_RESPONSE_SIZE

        require_torchserve()
    # The phase began before any of this code ran.
    clock.seconds[PYTHON] = max(clock.seconds[PYTHON], time.time() - job["started"])
    gpu = _start_gpu(clock)
    plan = plan_of_folder(Path(job["folder"]), Path(job["where"]), None)
    size = job["max_batch"] or plan.batch_size
    gpu = None if plan.config.get("deviceType") == "cpu" else gpu
    started = time.perf_counter()
    with watching_load(clock):
        runner = HandlerRunner(plan, batch_size=size, gpu_id=gpu, max_response_size=MAX_RESPONSE_SIZE)
    send("loaded", seconds=time.perf_counter() - started, phases=clock.seconds, **_about(runner, plan))
    return runner


def _about(runner: Any, plan: Any) -> dict[str, Any]:
    import torch

    from tsbatch.check.probes import is_batch_handler

    return {
        "model": runner.model_name,
        "handler": getattr(runner.handler, "__name__", type(runner.handler).__name__),
        "is_ours": is_batch_handler(runner.handler),
        "batch_size": runner.batch_size,
        "own_batch_size": plan.batch_size,
        "threads": torch.get_num_threads(),
        "workers": plan.config.get("minWorkers"),
        "startup_timeout": plan.config.get("startupTimeout"),
        "response_timeout": plan.config.get("responseTimeout"),
    }


def imported(folder: str) -> dict[str, str]:
    """Return the version of each installed package that this process has imported, without tsbatch and the archive."""
    from importlib.metadata import packages_distributions, version

    loaded = ((name, str(getattr(module, "__file__", None))) for name, module in list(sys.modules.items()))
    tops = {name.partition(".")[0] for name, file in loaded if not file.startswith(folder)}
    homes = packages_distributions()
    return {home: version(home) for home in sorted({home for top in tops for home in homes.get(top, ())} - {"tsbatch"})}


def _start_gpu(clock: Any) -> int | None:
    """Create the CUDA context of the GPU that TorchServe assigns first, as a separate phase; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    with clock.phase("CUDA context"):
        torch.zeros(1, device="cuda:0")
    return 0


def gpu_memory() -> dict[str, int] | None:
    """Return the GPU's free and total bytes, and those of this process's tensors; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(0)
    return {"free": free, "total": total, "reserved": torch.cuda.memory_reserved(0)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
