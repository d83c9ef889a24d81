"""Show the progress and the result of a tuning on a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from tsbatch.bench.progress_view import describe
from tsbatch.bench.request_log import Progress
from tsbatch.system import console
from tsbatch.tuning.history import History, Hypothesis, Step
from tsbatch.tuning.journal import render_figures
from tsbatch.tuning.objective import WORDS, Goal, cell, label, mean, shown
from tsbatch.tuning.recommendation import Seen, advice, confirming, expected, figures_of_tables
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Listener, Outcome
from tsbatch.tuning.tuning_report import ANY, headline, step_columns, step_rows


class Screen(Listener):
    """Show each step, the maximum remaining time, and the best figure so far.

    Args:
        step: the progress line.
        goal: the goal.
        budget: total runs.
        seconds: estimated duration of a run, until one was measured.
    """

    def __init__(self, step: console.Step, goal: Goal, budget: int, seconds: float) -> None:
        self._step, self._goal, self._budget = step, goal, budget
        self._each, self._runs, self._began = seconds, 0, time.monotonic()
        self._title, self._best = "", ""

    def run(self, progress: Progress) -> None:
        """Show the progress of a run."""
        if console.console.is_terminal:
            self._step.describe(f"{self._title}: {describe(progress)}")

    def message(self, message: str) -> None:
        """Show what else is being done."""
        if console.console.is_terminal:
            self._step.describe(message)

    def measuring(self, settings: ModelSettings, what: str, runs: int) -> None:
        """Show that a run begins, with the maximum time for all remaining ones."""
        now, new = time.monotonic(), runs - self._runs
        if new:  # runs from the journal take no time
            self._each = max(self._each, now - self._began)
        self._runs, self._began = runs, now
        left = max(0, self._budget - runs) * self._each
        self._title = f"{what} ({settings}), at most {_minutes(left)} left{self._best}"
        self._step.description = self._title
        self._step.advance(new)

    def started(self, history: History) -> None:
        """Print the figures of the baseline."""
        console.say(f"baseline: {render_figures([run.figures for run in history.start])}")
        self._remember(history)

    def proposed(self, hypothesis: Hypothesis, history: History) -> None:
        """Print the next change and its reason."""
        turned = hypothesis.change(history.baseline)
        console.say(f"step {len(history.steps) + 1}: {turned}\n  {hypothesis.why}")

    def judged(self, step: Step, history: History) -> None:
        """Print the verdict."""
        console.say(f"  step {history.number(step)}: {step.judgement.label}: {step.judgement.why}")
        self._remember(history)

    def _remember(self, history: History) -> None:
        typical = mean([run.figures for run in history.of(history.baseline)])
        aim = self._goal.objective
        value = typical.of(aim)
        self._best = "" if math.isnan(value) else f"; best so far {WORDS[aim][0]} {shown(aim, value)}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def render(outcome: Outcome, goal: Goal, seconds: float) -> None:
    """Print the result on stdout."""
    console.out.print(headline(outcome, goal), markup=False, soft_wrap=True)
    console.table(step_columns(goal), step_rows(outcome, goal), title="\nsteps")
    _render_expected(outcome)
    if outcome.recommended is not None:
        console.out.print(f"\n# model-config.yaml\n{outcome.recommended.yaml()}", markup=False)
    for note in advice(outcome, goal, seconds):
        console.say(f"note: {note}")


def _render_expected(outcome: Outcome) -> None:
    """Print the figures of all runs of the recommendation, and of its confirming runs alone."""
    runs = confirming(outcome)
    alone = mean(runs) if runs else None
    rows = [
        [
            WORDS[name][0],
            shown(name, one.value),
            *("" if end is None else shown(name, max(0.0, end)) for end in (one.low, one.high)),
            *([] if alone is None else [shown(name, alone.of(name))]),
        ]
        for name, one in expected(outcome).items()
    ]
    if rows:
        columns = ["expected", "typical", "from", "to", *([] if alone is None else ["confirming runs"])]
        console.table(columns, rows, title=f"\n{len(outcome.expected())} runs")


def render_ranking(ranked: Sequence[Seen], goal: Goal = ANY) -> None:
    """Print the simulator's predictions, the best first."""
    names = figures_of_tables(goal)
    rows = [
        [str(one.settings), *(cell(one.figures, name) for name in names), "yes" if one.keeps else "no"]
        for one in ranked
    ]
    console.table(["settings", *map(label, names), "meets the limits"], rows)
