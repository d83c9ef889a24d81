"""Where a diagnosis gets its numbers: a load test's file, or a log folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.diagnosis.diagnosis import Diagnosis, diagnose
from tsbatch.diagnosis.model_facts import Known
from tsbatch.diagnosis.model_log import ModelLog
from tsbatch.diagnosis.ts_log import Progress, read_log
from tsbatch.errors import UsageError

SETTINGS: Final = {"workers": "workers", "batch_size": "batchSize", "max_batch_delay": "maxBatchDelay"}


def from_result(path: Path) -> Diagnosis:
    """Diagnose the last step of a load test: the one with the highest load, in all its repeats.

    Raises:
        UsageError: it is no result, or tells no split.
        OSError: it cannot be read.
    """
    return of_result(BenchResult.load(path), source=str(path))


def of_result(result: BenchResult, *, source: str = "") -> Diagnosis:
    """Diagnose the last step of a load test, as :func:`from_result` does.

    Raises:
        UsageError: it has no run, or tells no split.
    """
    steps = result.steps()
    if not steps:
        raise UsageError(f"{source or 'the result'}: no run in it")
    step, runs = list(steps.items())[-1]
    samples = in_a_row([run.samples for run in runs])
    remarks = [] if len(steps) == 1 else [f"of {len(steps)} steps the last one, {step:g}, is diagnosed"]
    return diagnose(
        samples,
        known_of_result(result, runs),
        source=source,
        seconds=sum(run.seconds for run in runs),
        remarks=remarks,
    )


def in_a_row(parts: Sequence[Samples]) -> Samples:
    """The requests of several runs as if each had begun when the one before had ended."""
    shifted: list[Samples] = []
    end = 0.0
    for part in parts:
        if not len(part):
            continue
        begin = end - float(part.sent.min()) if shifted else 0.0
        moved = replace(part, sent=part.sent + begin)
        end = float(np.nanmax(moved.sent + moved.latency / 1000))
        shifted.append(moved)
    return Samples.join(shifted)


def known_of_result(result: BenchResult, runs: Sequence[Run]) -> Known:
    """What a load test tells of the model's settings and of its workers."""
    settings = result.target.get("settings") or {}
    known: dict[str, Any] = {name: settings.get(key) for name, key in SETTINGS.items()}
    workers = [one for run in runs for one in run.workers if one.get("name") != "server"]
    memory = [one["memory_private"] or one["memory_rss"] for one in workers]
    if workers:
        # The load came from the workers' own machine, else nobody had watched them.
        known["cores"] = result.environment.get("cores")
        known["worker_memory"] = int(max(memory))
        known["worker_cores"] = _cores_while_busy(runs, workers)
    known["engine"] = result.target.get("engine")
    return Known(model=result.target.get("model") or "", version=result.target.get("version") or "", **known)


def _cores_while_busy(runs: Sequence[Run], workers: Sequence[Any]) -> float | None:
    good = [run.samples.where(~np.isnan(run.samples.handler + run.samples.batch)) for run in runs]
    handler = sum(float((part.handler / part.batch).sum()) / 1000 for part in good)
    seconds = sum(run.seconds for run in runs) / len(runs)
    return sum(one["cpu"] for one in workers) * seconds / handler if handler else None


def from_log(
    path: Path, *, model: str | None = None, known: Known | None = None, on_progress: Progress | None = None
) -> Diagnosis:
    """Diagnose one model of a log folder.

    Args:
        path: a folder that holds ts_log.log, or such a file.
        model: which, as NAME or NAME/VERSION; the busiest when left out.
        known: what is known of it beside the log.
        on_progress: told how far the reading is.

    Raises:
        UsageError: there is no log, no request in it, or no such model.
        OSError: a file cannot be read.
    """
    logs = read_log(path, on_progress)
    chosen = choose(logs, model)
    return of_model_log(chosen, known or Known(), source=str(path), others=[one for one in logs if one is not chosen])


def choose(logs: Sequence[ModelLog], model: str | None) -> ModelLog:
    """The model that somebody asked for, as NAME or NAME/VERSION; the busiest when nobody did.

    Raises:
        UsageError: the log has no such model.
    """
    name, _, version = (model or "").partition("/")
    found = [log for log in logs if name in ("", log.name) and version in ("", log.version)]
    if not found:
        names = ", ".join(f"{log.name}/{log.version}" for log in logs)
        raise UsageError(f"the log tells nothing of {model}; it tells of: {names}")
    return found[0]


def of_model_log(log: ModelLog, known: Known, *, source: str = "", others: Sequence[ModelLog] = ()) -> Diagnosis:
    """Diagnose what a log tells of one model."""
    samples = log.samples()
    remarks = []
    if log.share < 1:
        remarks.append(f"percentiles come from {len(samples)} of {log.requests} requests, taken in stretches")
    if others:
        names = ", ".join(f"{one.name}/{one.version} ({one.requests})" for one in others[:8])
        remarks.append(f"the log also tells of {names}; choose with --model")
    return diagnose(
        samples,
        replace(known, model=log.name, version=log.version, workers=known.workers or len(log.workers) or None),
        source=source,
        seconds=log.seconds,
        share=len(samples) / log.requests,
        remarks=remarks,
    )
