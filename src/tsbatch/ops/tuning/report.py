"""The report of a tuning: the recommendation, the steps that led to it, and the Pareto front of what was seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsbatch.ops.measure.show import number
from tsbatch.ops.measure.statistics import Estimate
from tsbatch.ops.report.charts import points
from tsbatch.ops.report.document import Figure, Part, Report, Section, Table, Words
from tsbatch.ops.report.tables import pairs
from tsbatch.ops.tuning.history import Step
from tsbatch.ops.tuning.journal import change_text
from tsbatch.ops.tuning.objective import WORDS, Figures, Goal, mean, shown
from tsbatch.ops.tuning.result import Seen, advice, expected, seen
from tsbatch.ops.tuning.tuner import Outcome

STEP_COLUMNS = ("step", "change", "requests/s", "P50 ms", "P99 ms", "verdict")


def report_of_tuning(outcome: Outcome, goal: Goal, about: Mapping[str, Any], seconds: float) -> Report:
    """The report.

    Args:
        outcome: what was found.
        goal: what was wanted.
        about: what was tuned and how, by name.
        seconds: how long each run was.
    """
    found, told = seen(outcome.history, goal), expected(outcome)
    return Report(
        title=f"tsbatch tune: {about.get('model', '')}",
        headline=headline(outcome),
        lead=[f"Wanted: {goal.said()}.", *(f"Note: {note}." for note in advice(outcome, goal, seconds))],
        facts=[(WORDS[name][0], _with_interval(name, estimate)) for name, estimate in told.items()],
        sections=[
            Section("What to set", _settings(outcome)),
            Section(
                "Step by step",
                [Table(title="Steps", columns=STEP_COLUMNS, rows=step_rows(outcome)), *_reasons(outcome)],
            ),
            Section("Everything that was seen", [_front(found, goal)]),
            Section("How it was measured", [pairs("Tuning", about)]),
        ],
    )


def headline(outcome: Outcome) -> str:
    """The result in a sentence."""
    before = mean([run.figures for run in outcome.history.start])
    if outcome.recommended is None:
        return "No setting was found that keeps the limits; nothing is recommended"
    if not outcome.changed:
        return f"Nothing to gain: {outcome.recommended} stays as it is"
    after = mean(outcome.expected())
    told = [
        f"{WORDS[name][0]} {shown(name, before.of(name))} → {shown(name, after.of(name))}"
        for name in ("throughput", "p99")
    ]
    return f"{outcome.recommended}: {', '.join(told)}"


def step_rows(outcome: Outcome) -> list[list[Any]]:
    """What there was, then one row for each step with the candidate's figures."""
    start = [run.figures for run in outcome.history.start]
    rows: list[list[Any]] = [[0, str(outcome.history.start[0].knobs), *_cells(start), "what there is"]]
    return rows + [_row(number, step) for number, step in enumerate(outcome.history.steps, 1)]


def _row(number: int, step: Step) -> list[Any]:
    cells: list[float | None] = _cells(step.after()) if step.pairs else [None, None, None]
    return [number, change_text(step), *cells, step.judgement.verdict]


def _cells(runs: Sequence[Figures]) -> list[float | None]:
    typical = mean(runs)
    return [round(typical.throughput, 1), round(typical.p50, 1), round(typical.p99, 1)]


def _reasons(outcome: Outcome) -> list[Part]:
    return [
        Words(
            title=f"Step {place}: {change_text(step)}",
            lines=[step.hypothesis.why, *step.hypothesis.evidence, f"{step.judgement.verdict}: {step.judgement.why}"],
        )
        for place, step in enumerate(outcome.history.steps, 1)
    ]


def _settings(outcome: Outcome) -> list[Part]:
    if outcome.recommended is None:
        return [Words(lines=["Nothing that was measured keeps the limits."])]
    return [Words(title="In model-config.yaml", code=outcome.recommended.yaml())]


def _front(found: Sequence[Seen], goal: Goal) -> Figure:
    groups = {"on the front": [one for one in found if one.best], "others": [one for one in found if not one.best]}
    note = "No setting on the front is beaten in both requests/s and P99 by another one that was measured."
    return Figure(
        title="Requests/s and P99 of each setting",
        note=note,
        chart=points(
            f"Requests/s by P99. {note}",
            {
                name: [(one.figures.p99, one.figures.throughput, str(one.knobs)) for one in group]
                for name, group in groups.items()
            },
            across="P99, ms",
            up="requests/s",
            joined="on the front",
            mark=goal.p99,
        ),
        legend=[(f"c{place}", name) for place, name in enumerate(groups)],
        columns=["setting", "runs", "requests/s", "P50 ms", "P99 ms", "failed", "front", "keeps the limits"],
        rows=[
            [
                str(one.knobs),
                one.runs,
                *_cells([one.figures]),
                round(one.figures.failed, 4),
                _yes(one.best),
                _yes(one.keeps),
            ]
            for one in found
        ],
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _with_interval(name: str, estimate: Estimate) -> str:
    text = shown(name, estimate.value)
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return text
    scaled = [number(bound * (100 if name == "failed" else 1)) for bound in (max(0.0, estimate.low), estimate.high)]
    return f"{text} ({scaled[0]} to {scaled[1]})"
