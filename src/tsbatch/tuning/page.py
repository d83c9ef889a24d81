"""How a tuning goes, and its result, on a terminal."""

from __future__ import annotations

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
    """Shows the steps as they come, how long it may still take, and the best so far.

    Args:
        step: the moving line.
        goal: what is wanted.
        budget: runs in all.
        seconds: how long a run takes, until one was measured.
    """

    def __init__(self, step: console.Step, goal: Goal, budget: int, seconds: float) -> None:
        self._step, self._goal, self._budget = step, goal, budget
        self._each, self._runs, self._began = seconds, 0, time.monotonic()
        self._title, self._best = "", ""

    def run(self, progress: Progress) -> None:
        """How a run goes."""
        if console.console.is_terminal:
            self._step.describe(f"{self._title}: {describe(progress)}")

    def told(self, message: str) -> None:
        """What else is being done."""
        if console.console.is_terminal:
            self._step.describe(message)

    def measuring(self, settings: ModelSettings, what: str, runs: int) -> None:
        """A run begins: with the time that all the others may take."""
        now, new = time.monotonic(), runs - self._runs
        if new:  # those that come from the journal take no time
            self._each = max(self._each, now - self._began)
        self._runs, self._began = runs, now
        left = max(0, self._budget - runs) * self._each
        self._title = f"{what} ({settings}), at most {_minutes(left)} left{self._best}"
        self._step.description = self._title
        self._step.advance(new)

    def started(self, history: History) -> None:
        """What there is."""
        console.say(f"what there is: {render_figures([run.figures for run in history.start])}")
        self._remember(history)

    def proposed(self, hypothesis: Hypothesis, history: History) -> None:
        """What is tried next, and why."""
        turned = hypothesis.change(history.baseline)
        console.say(f"step {len(history.steps) + 1}: {turned}\n  {hypothesis.why}")

    def judged(self, step: Step, history: History) -> None:
        """What came out."""
        console.say(f"  step {history.number(step)}: {step.judgement.verdict}: {step.judgement.why}")
        self._remember(history)

    def _remember(self, history: History) -> None:
        typical = mean([run.figures for run in history.of(history.baseline)])
        aim = self._goal.objective
        self._best = (
            f"; best so far {WORDS[aim][0]} {shown(aim, typical.of(aim))}" if typical.of(aim) == typical.of(aim) else ""
        )


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def show(outcome: Outcome, goal: Goal, seconds: float) -> None:
    """The result, on stdout."""
    console.out.print(headline(outcome, goal), markup=False, soft_wrap=True)
    console.table(step_columns(goal), step_rows(outcome, goal), title="\nsteps")
    _show_expected(outcome)
    if outcome.recommended is not None:
        console.out.print(f"\n# model-config.yaml\n{outcome.recommended.yaml()}", markup=False)
    for note in advice(outcome, goal, seconds):
        console.say(f"note: {note}")


def _show_expected(outcome: Outcome) -> None:
    """The recommendation's runs; beside them those that had no part in its being chosen."""
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


def show_ranking(ranked: Sequence[Seen], goal: Goal = ANY) -> None:
    """What the simulator expects of the settings, the best first."""
    names = figures_of_tables(goal)
    rows = [
        [str(one.settings), *(cell(one.figures, name) for name in names), "yes" if one.keeps else "no"]
        for one in ranked
    ]
    console.table(["setting", *map(label, names), "keeps the limits"], rows)
