"""The report of a plan: the machines that a load needs, and the curves around that load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tsbatch.bench.result_tables import Table, number
from tsbatch.report.charts import line_figure
from tsbatch.report.document import Figure, Report, Section, Words
from tsbatch.simulation.capacity_plan import Plan, Point


def report_of_plans(plans: Sequence[Plan]) -> Report:
    """Return the report of plans for one or several rates, with the curves of the last."""
    last = plans[-1]
    return Report(
        title="tsbatch plan",
        headline=headline(last),
        lead=[headline(plan) for plan in plans[:-1]],
        facts=[
            (f"{last.unit}s", str(last.machines)),
            ("P99", f"{number(last.point.p99)} ms"),
            ("margin", f"{last.margin:.0%}"),
            *([("cost", number(last.machines * last.price) or "")] if last.price is not None else []),
        ],
        sections=[
            Section("Plans", [plan_table(plans)]),
            Section("Around this rate", curves(last)),
            Section("Settings", [settings_table(last)]),
            Section(
                "Basis of the plan",
                [
                    Words(title="Measured", lines=list(last.measured) or ["nothing"]),
                    Words(title="Extrapolated", lines=list(last.guessed)),
                ],
            ),
        ],
    )


def headline(plan: Plan) -> str:
    """The plan in one sentence."""
    settings = plan.chosen.settings
    workers = f"{settings.workers} worker{'s' * (settings.workers > 1)}"
    with_workers = f"{plan.counted} with {workers}" if plan.unit == "machine" else plan.counted
    delay = f", maxBatchDelay {settings.max_batch_delay}" if settings.batch_size > 1 else ""
    return (
        f"{plan.rate:g} requests/s within {plan.goal.p99:g} ms at P99: {with_workers}, batchSize"
        f" {settings.batch_size}{delay}"
    )


def plan_table(plans: Sequence[Plan]) -> Table:
    """One row for each plan."""
    records = [
        {
            "requests/s": round(plan.rate, 1),
            f"{plan.unit}s": plan.machines,
            **({} if plan.price is None else {"cost": round(plan.machines * plan.price, 2)}),
            **{name: value for name, value in plan.chosen.settings.to_json().items() if name != "jobQueueSize"},
            "P50 ms": round(plan.point.p50, 1),
            "P99 ms": round(plan.point.p99, 1),
            "margin %": round(100 * plan.margin, 1),
            "P99 with one down": None if plan.down is None else round(plan.down.p99, 1),
            "refused %": None if plan.down is None else round(100 * plan.down.refused, 2),
        }
        for plan in plans
    ]
    return Table.of("What each load needs", records)


def settings_table(plan: Plan) -> Table:
    """The chosen and the next best settings."""
    column = f"requests/s of a {plan.unit}"
    records = [{**one.settings.to_json(), column: round(one.rate, 1)} for one in (plan.chosen, *plan.others)]
    note = f"The plan uses the first row. The rate is the highest at which a {plan.unit} meets the goal."
    return Table.of("Best settings", records, note)


def curves(plan: Plan) -> list[Figure]:
    """Latency and cost over the rate."""
    at = np.array([point.rate for point in plan.curve])
    latencies = {"P50": _column(plan.curve, "p50"), "P99": _column(plan.curve, "p99")}
    note = f"With {plan.counted} as planned; the goal is {plan.goal.p99:g} ms at P99."
    unit = f"{plan.unit}s" if plan.price is None else "cost"
    cost = _column(plan.curve, "needed") * (plan.price or 1)
    return [
        line_figure("Latency over the rate", note, "ms", at, latencies, across="requests/s"),
        line_figure(
            "Cost over the rate", "Needed for each rate to meet the goal.", unit, at, {unit: cost}, across="requests/s"
        ),
    ]


def _column(points: Sequence[Point], name: str) -> Any:
    return np.array([getattr(point, name) for point in points], dtype=np.float64)
