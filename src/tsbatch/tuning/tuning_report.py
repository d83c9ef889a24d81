"""The report of a tuning: the recommendation, the steps that led to it, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tsbatch.bench.result_tables import Table, number
from tsbatch.bench.statistics import Estimate
from tsbatch.report.charts import points
from tsbatch.report.document import Figure, Part, Report, Section, Words
from tsbatch.report.tables import pairs
from tsbatch.tuning.history import Step
from tsbatch.tuning.journal import render_figures
from tsbatch.tuning.objective import SCALES, WORDS, Aim, Goal, cell, label, mean, shown
from tsbatch.tuning.recommendation import (
    Seen,
    advice,
    conclusion,
    confirming,
    expected,
    figures_of_front,
    figures_of_headline,
    figures_of_tables,
    gain,
    hidden_steps,
    seen,
)
from tsbatch.tuning.tuner import Outcome

ANY: Final = Goal()
"""The default goal of a report."""


def report_of_tuning(outcome: Outcome, goal: Goal, about: Mapping[str, Any], seconds: float) -> Report:
    """Build the report.

    Args:
        outcome: the outcome.
        goal: the goal.
        about: what was tuned and how, by name.
        seconds: duration of each run.
    """
    found, told, confirmed = seen(outcome.history, goal), expected(outcome), confirming(outcome)
    return Report(
        title=f"tsbatch tune: {about.get('model', '')}",
        headline=headline(outcome, goal),
        lead=[
            f"Goal: {goal}.",
            *([f"Confirming runs alone: {render_figures(confirmed)}."] if confirmed else []),
            *(f"Note: {note}." for note in advice(outcome, goal, seconds)),
        ],
        facts=[(WORDS[name][0], _with_interval(name, estimate)) for name, estimate in told.items()],
        sections=[
            Section("Recommended settings", _settings(outcome)),
            Section(
                "Steps",
                [Table(title="Steps", columns=step_columns(goal), rows=step_rows(outcome, goal)), *_reasons(outcome)],
            ),
            Section("All measured settings", [_front(found, goal)]),
            Section("Method", [pairs("Tuning", about)]),
        ],
    )


def headline(outcome: Outcome, goal: Goal = ANY) -> str:
    """Return the result in a sentence, with the figures that the goal is about."""
    found = conclusion(outcome)
    if found == "nothing to recommend":
        return "No settings were found that meet the limits; nothing is recommended"
    if found == "nothing to gain":
        return f"Nothing to gain: keep {outcome.recommended}"
    if found != "changed":
        return f"{_why_unfinished(outcome)}; keep {outcome.recommended}"
    told = [text for name in figures_of_headline(goal) if (text := _change(outcome, name))]
    turns = "; factors are from pairs of alternating runs" if "×" in "".join(told) else ""
    return f"{outcome.recommended}: {', '.join(told)}{turns}"


def _why_unfinished(outcome: Outcome) -> str:
    steps = outcome.history.steps
    if conclusion(outcome) == "no runs left":
        return "Not finished: no runs are left"
    if untold := len(hidden_steps(steps)):
        return f"Inconclusive: noise hides the effect of {untold} of {len(steps)} steps"
    return "Inconclusive: none of the settings that were tried works"


def _change(outcome: Outcome, name: Aim) -> str:
    """Return a figure before and after, and the factor of the pairs; empty if unknown."""
    before = mean([run.figures for run in outcome.history.start]).of(name)
    after = mean(outcome.expected()).of(name)
    if math.isnan(before) or math.isnan(after):
        return ""
    factor = gain(outcome, name)
    text = f"{WORDS[name][0]} {shown(name, before)} → {shown(name, after)}"
    return text if factor is None else f"{text} (×{factor:.3g})"


def step_columns(goal: Goal) -> list[str]:
    """Return the headings of :func:`step_rows`."""
    return ["step", "change", *map(label, figures_of_tables(goal)), "verdict"]


def step_rows(outcome: Outcome, goal: Goal) -> list[list[Any]]:
    """Return a row for the initial settings, then one per step with the candidate's figures."""
    start, names = outcome.history.start, figures_of_tables(goal)
    first = mean([run.figures for run in start])
    rows: list[list[Any]] = [[0, str(start[0].settings), *(cell(first, name) for name in names), "baseline"]]
    return rows + [_row(number, step, names) for number, step in enumerate(outcome.history.steps, 1)]


def _row(number: int, step: Step, names: Sequence[Aim]) -> list[Any]:
    cells = [cell(mean(step.after()), name) if step.pairs else None for name in names]
    return [number, step.change, *cells, step.judgement.label]


def _reasons(outcome: Outcome) -> list[Part]:
    return [
        Words(
            title=f"Step {number}: {step.change}",
            lines=[step.hypothesis.why, *step.hypothesis.evidence, f"{step.judgement.label}: {step.judgement.why}"],
        )
        for number, step in enumerate(outcome.history.steps, 1)
    ]


def _settings(outcome: Outcome) -> list[Part]:
    if outcome.recommended is None:
        return [Words(lines=["No measured settings meet the limits."])]
    return [Words(title="In model-config.yaml", code=outcome.recommended.yaml())]


def _front(found: Sequence[Seen], goal: Goal) -> Figure:
    groups = {"on the front": [one for one in found if one.best], "others": [one for one in found if not one.best]}
    up, across = figures_of_front(goal, [one.figures for one in found])
    words, names = WORDS[up][0], figures_of_tables(goal)
    if up not in names:
        names = [*names, up]
    note = f"No measured settings are better in both {words} and P99 than those on the front."
    return Figure(
        title=f"{words[0].upper()}{words[1:]} and P99 of each setting",
        note=note,
        chart=points(
            f"{words} by P99. {note}",
            {
                name: [(one.figures.of(across), cell(one.figures, up, 3) or 0.0, str(one.settings)) for one in group]
                for name, group in groups.items()
            },
            across="P99, ms",
            up=label(up),
            joined="on the front",
            mark=goal.p99,
        ),
        legend=[(f"c{index}", name) for index, name in enumerate(groups)],
        columns=["settings", "runs", *map(label, names), "failed", "front", "meets the limits"],
        rows=[
            [
                str(one.settings),
                one.runs,
                *(cell(one.figures, name) for name in names),
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
    scaled = [number(bound * SCALES.get(name, 1.0)) for bound in (max(0.0, estimate.low), estimate.high)]
    return f"{text} ({scaled[0]} to {scaled[1]})"
