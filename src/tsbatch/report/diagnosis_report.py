"""The report of a diagnosis."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tsbatch.bench.request_table import Samples
from tsbatch.bench.result_tables import number
from tsbatch.bench.statistics import percentiles
from tsbatch.bench.target import environment
from tsbatch.diagnosis.diagnosis import Diagnosis
from tsbatch.diagnosis.explanation import next_step, reasons
from tsbatch.report.document import Part, Report, Section
from tsbatch.report.latency_figures import latency_split, mean_split, stage_split
from tsbatch.report.request_figures import batch_sizes, distribution, over_time, padding
from tsbatch.report.tables import pairs, raw, settings_of_diagnosis


def report_of_diagnosis(diagnosis: Diagnosis, wastes: Mapping[str, float] | None = None) -> Report:
    """The report of a diagnosis.

    Args:
        diagnosis: the diagnosis.
        wastes: the reported padding waste, 0 to 1, by name of the measurement.
    """
    name, evidence = diagnosis.known.name, diagnosis.evidence
    samples = diagnosis.samples
    machine = pairs("Machine that made this report", environment())
    failed = ("failed", f"{evidence.failed:.1%}")
    return Report(
        title=f"tsbatch diagnose: {name}",
        headline=f"{name}: {diagnosis.finding.regime}. {diagnosis.finding.headline}",
        lead=[f"From {diagnosis.source}: {evidence.requests} requests in {evidence.seconds:.1f} s."],
        facts=[("requests/s", number(evidence.rate) or ""), *latency_facts(samples), failed],
        sections=[
            Section("Next step", [*next_step(diagnosis), *reasons(diagnosis)]),
            Section("Where the time goes", _time(diagnosis, wastes or {})),
            Section("Settings and environment", [settings_of_diagnosis(diagnosis), machine]),
            *([] if samples is None else [Section("Raw", [raw(samples)])]),
        ],
    )


def _time(diagnosis: Diagnosis, wastes: Mapping[str, float]) -> list[Part]:
    if diagnosis.samples is None:
        return [mean_split(diagnosis.split)]
    samples = diagnosis.samples
    return [
        *time_parts(samples, samples.where(samples.ok), wastes),
        *over_time(samples, share=diagnosis.share),
    ]


def time_parts(samples: Samples, counted: Samples, wastes: Mapping[str, float]) -> list[Part]:
    """The charts of where the time went.

    Args:
        samples: the requests.
        counted: the requests whose latency counts.
        wastes: see :func:`tsbatch.report.request_figures.padding`.
    """
    found = [latency_split(samples), stage_split(samples), distribution(counted), batch_sizes(samples), padding(wastes)]
    return [part for part in found if part is not None]


def latency_facts(samples: Samples | None) -> list[tuple[str, str]]:
    """P50 and P99 of the good answers, if known."""
    if samples is None:
        return []
    figures = percentiles(samples.latency[samples.ok & ~np.isnan(samples.latency)])
    return [(name, f"{number(figures[key])} ms") for name, key in (("P50", "p50"), ("P99", "p99")) if key in figures]
