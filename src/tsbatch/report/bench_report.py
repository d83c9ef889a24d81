"""The report of a load test."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tsbatch.bench.page import headline
from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_file import BenchResult, Run
from tsbatch.bench.result_tables import failures, notes, number, processes, rates_and_latencies, target_name
from tsbatch.bench.summary import timed_out
from tsbatch.diagnosis.data_sources import in_a_row, of_result
from tsbatch.diagnosis.explanation import next_step, reasons
from tsbatch.errors import UsageError
from tsbatch.report.charts import line_figure
from tsbatch.report.diagnosis_report import time_parts
from tsbatch.report.document import Part, Report, Section, Words
from tsbatch.report.request_figures import POINTED, over_time
from tsbatch.report.tables import pairs, raw, settings_of_target


def report_of_bench(result: BenchResult) -> Report:
    """Return the report of a load test, with the details of its last step, which has the highest load.

    Raises:
        UsageError: the result has no run.
    """
    if not result.runs:
        raise UsageError("the result has no run, so there is nothing to report")
    step, runs = list(result.steps().items())[-1]
    samples = in_a_row([run.samples for run in runs])
    diagnosis = None
    with contextlib.suppress(UsageError):  # without latency breakdown; its figure says so
        diagnosis = of_result(result)
    name = target_name(result.target)
    lead = [f"{str(diagnosis.finding.regime).capitalize()}. {diagnosis.finding.headline}"] if diagnosis else []
    several = f" (step {step:g})" if len(result.summary) > 1 and step is not None else ""
    tables = [rates_and_latencies(result), failures(result.runs), processes(runs)]
    return Report(
        title=f"tsbatch bench: {name}",
        headline=_headline(name, result.summary[-1], result.plan["loop"]),
        lead=[headline(result), *lead, *(f"Note: {note}" for note in notes(result.summary))],
        facts=_facts(result.summary[-1]),
        sections=[
            *([Section("Next step", [*next_step(diagnosis), *reasons(diagnosis)])] if diagnosis else []),
            *([Section("Step by step", _steps(result.summary))] if len(result.summary) > 1 else []),
            Section(f"Where the time goes{several}", _time(samples, runs, float(result.plan["timeout"]))),
            Section("Figures", [table for table in tables if table is not None]),
            Section(
                "Settings and environment",
                [
                    settings_of_target(result.target),
                    pairs("Load", {**result.plan, "address": result.target["address"]}),
                    pairs("Machine that generated the load", result.environment),
                ],
            ),
            Section(f"Raw{several}", [raw(samples)]),
        ],
    )


def _headline(name: str, step: Mapping[str, Any], loop: str) -> str:
    rate, latency = step["rate"]["value"], step["latency"]
    if not latency:
        return f"{name} answered none of {step['requests']} requests"
    failed = f"{step['failed']} of {step['requests']} requests failed" if step["failed"] else "none failed"
    shown = [f"{number(latency[key]['value'])} ms at {key.upper()}" for key in ("p50", "p99") if key in latency]
    took = " and ".join(shown) or f"{number(latency['mean']['value'])} ms"
    load = "a trace" if step["step"] is None else f"{step['step']:g} {'clients' if loop == 'closed' else 'requests/s'}"
    return f"Under {load}, {name} answered {number(rate)} requests/s in {took}; {failed}"


def _facts(step: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [("requests/s", number(step["rate"]["value"]) or "")]
    shown = {name: step["latency"][key]["value"] for name, key in POINTED.items() if key in step["latency"]}
    facts += [(name, f"{number(value)} ms") for name, value in shown.items()]
    return [*facts, ("failed", f"{step['failed'] / step['requests']:.1%}" if step["requests"] else "-")]


def _time(samples: Samples, runs: Sequence[Run], timeout: float) -> list[Part]:
    counted = samples.where(samples.ok | timed_out(samples, timeout))
    wastes = {f"run {turn + 1}": run.padding_waste for turn, run in enumerate(runs) if run.padding_waste is not None}
    ends = np.cumsum([len(run.samples) for run in runs])[:-1]
    starts = [float(samples.sent[end:].min()) for end in ends if end < len(samples)]
    return [*time_parts(samples, counted, wastes), *over_time(samples, starts=starts)]


def _steps(steps: Sequence[Mapping[str, Any]]) -> list[Part]:
    at = np.array([step["step"] for step in steps], dtype=np.float64)
    if np.any(np.diff(at) <= 0):
        return [Words(lines=["The steps are not in rising order, so they have no chart; see their figures below."])]
    note = "Each step is one load: clients of a closed loop, or requests/s of an open one."
    rates = np.array([step["rate"]["value"] for step in steps])
    latencies = {
        key.upper(): np.array([step["latency"].get(key, {}).get("value", np.nan) for step in steps], dtype=np.float64)
        for key in ("p50", "p99")
    }
    return [
        line_figure(title, note, unit, at, series, across="step")
        for title, unit, series in (
            ("Rate by step", "requests/s", {"good answers": rates}),
            ("Latency by step", "ms", latencies),
        )
    ]
