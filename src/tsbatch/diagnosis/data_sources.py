"""Diagnose a load test's result file, or one model of a log folder."""

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
from tsbatch.errors import UsageError

SETTINGS: Final = {"workers": "workers", "batch_size": "batchSize", "max_batch_delay": "maxBatchDelay"}


def from_result(path: Path) -> Diagnosis:
    """Diagnose the last step of a load test, which has the highest load, over all repeats.

    Raises:
        UsageError: it is not a result file, or has no latency breakdown.
        OSError: it cannot be read.
    """
    return of_result(BenchResult.load(path), source=str(path))


def of_result(result: BenchResult, *, source: str = "") -> Diagnosis:
    """Diagnose the last step of a load test, as :func:`from_result` does.

    Raises:
        UsageError: it has no run, or no latency breakdown.
    """
    steps = result.steps()
    if not steps:
        raise UsageError(f"{source or 'the result'}: no run in it")
    step, runs = list(steps.items())[-1]
    samples = in_a_row([run.samples for run in runs])
    remarks = [] if len(steps) == 1 else [f"only the last of {len(steps)} steps, {step:g}, was diagnosed"]
    return diagnose(
        samples,
        known_of_result(result, runs),
        source=source,
        seconds=sum(run.seconds for run in runs),
        remarks=remarks,
    )


def in_a_row(parts: Sequence[Samples]) -> Samples:
    """Join the requests of several runs as if each run began at the end of the previous one."""
    shifted: list[Samples] = []
    end = 0.0
    for part in filter(len, parts):
        begin = end - float(part.sent.min()) if shifted else 0.0
        moved = replace(part, sent=part.sent + begin)
        end = float(np.nanmax(moved.sent + moved.latency / 1000))
        shifted.append(moved)
    return Samples.join(shifted)


def known_of_result(result: BenchResult, runs: Sequence[Run]) -> Known:
    """Return the facts in a load test about the model's settings and workers."""
    settings = result.target.get("settings") or {}
    known: dict[str, Any] = {name: settings.get(key) for name, key in SETTINGS.items()}
    workers = [one for run in runs for one in run.workers if one.get("name") != "server"]
    memory = [one["memory_private"] or one["memory_rss"] for one in workers]
    if workers:
        good = [run.samples.where(~np.isnan(run.samples.handler + run.samples.batch)) for run in runs]
        handler = sum(float((part.handler / part.batch).sum()) / 1000 for part in good)
        seconds = sum(run.seconds for run in runs) / len(runs)
        # Workers can only be watched on the machine that generates the load.
        known["cores"] = result.environment.get("cores")
        known["worker_memory"] = int(max(memory))
        known["worker_cores"] = sum(one["cpu"] for one in workers) * seconds / handler if handler else None
    known["engine"] = result.target.get("engine")
    return Known(model=result.target.get("model") or "", version=result.target.get("version") or "", **known)


def choose(logs: Sequence[ModelLog], model: str | None) -> ModelLog:
    """Choose a model by NAME or NAME/VERSION, by default the busiest one.

    Raises:
        UsageError: the log has no such model.
    """
    name, _, version = (model or "").partition("/")
    found = [log for log in logs if name in ("", log.name) and version in ("", log.version)]
    if not found:
        names = ", ".join(f"{log.name}/{log.version}" for log in logs)
        raise UsageError(f"the log has no requests of {model}; it has requests of: {names}")
    return found[0]


def of_model_log(log: ModelLog, known: Known, *, source: str = "", others: Sequence[ModelLog] = ()) -> Diagnosis:
    """Diagnose one model of a log."""
    samples = log.samples()
    remarks = []
    if log.share < 1:
        remarks.append(f"percentiles come from {len(samples)} of {log.requests} requests, in contiguous stretches")
    if others:
        names = ", ".join(f"{one.name}/{one.version} ({one.requests})" for one in others[:8])
        remarks.append(f"the log also has requests of {names}; choose with --model")
    return diagnose(
        samples,
        replace(known, model=log.name, version=log.version, workers=known.workers or len(log.workers) or None),
        source=source,
        seconds=log.seconds,
        share=len(samples) / log.requests,
        remarks=remarks,
    )
