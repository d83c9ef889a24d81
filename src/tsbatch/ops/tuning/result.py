"""A tuning's result: the recommendation, what to expect of it, and everything that was seen beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tsbatch.ops.diagnosis.advice import Setting
from tsbatch.ops.measure.statistics import Estimate, mean_of_runs
from tsbatch.ops.tuning.history import History, plain
from tsbatch.ops.tuning.journal import change_text
from tsbatch.ops.tuning.knobs import Knobs
from tsbatch.ops.tuning.noise import seconds_needed
from tsbatch.ops.tuning.objective import Figures, Goal, mean
from tsbatch.ops.tuning.tuner import Outcome

SCHEMA: Final = 1
NAMES: Final = ("throughput", "p50", "p99", "failed")


@dataclass(frozen=True, slots=True)
class Seen:
    """One setting that was measured.

    Attributes:
        knobs: the setting.
        runs: how often.
        figures: the typical run.
        best: whether no other setting has both more requests/s and a lower P99: it is on the Pareto front.
        keeps: whether it keeps every limit.
    """

    knobs: Knobs
    runs: int
    figures: Figures
    best: bool = False
    keeps: bool = True


def seen(history: History, goal: Goal) -> list[Seen]:
    """Every setting that was measured, in the order of its first run, with the Pareto front marked."""
    found = []
    for knobs in dict.fromkeys(run.knobs for run in history.runs):
        figures = [run.figures for run in history.of(knobs)]
        found.append(Seen(knobs, len(figures), mean(figures), keeps=not goal.broken(mean(figures))))
    return [replace(one, best=not any(_dominates(other.figures, one.figures) for other in found)) for one in found]


def _dominates(one: Figures, other: Figures) -> bool:
    as_good = one.throughput >= other.throughput and one.p99 <= other.p99
    return as_good and (one.throughput > other.throughput or one.p99 < other.p99)


def expected(outcome: Outcome) -> dict[str, Estimate]:
    """What to expect of the recommendation, with the interval in which the mean of many runs would lie."""
    runs = outcome.expected()
    return {name: mean_of_runs([figures.of(name) for figures in runs]) for name in NAMES} if runs else {}


def advice(outcome: Outcome, goal: Goal, seconds: float) -> list[str]:
    """What to know about the result, one sentence each.

    Args:
        outcome: what was found.
        goal: what was wanted.
        seconds: how long each run was.
    """
    notes = []
    if outcome.recommended is None:
        notes.append(f"no setting was found that keeps the limits: {goal.said()}")
    elif not outcome.changed:
        notes.append("nothing to gain: no single change helped by more than the noise; leave it as it is")
    needed = [found for step in outcome.history.steps if (found := seconds_needed(seconds, step)) is not None]
    if needed:
        notes.append(
            f"{len(needed)} of {len(outcome.history.steps)} steps could not be told from the noise of this machine; "
            f"measure longer: --duration {max(2 * seconds, _rounded(max(needed))):g}"
        )
    if outcome.ended == "no runs left":
        notes.append("it ended because its runs were used up; there may be more to gain: raise --budget")
    return notes


def _rounded(seconds: float) -> float:
    return float(min(600, -(-seconds // 5) * 5))


def to_json(outcome: Outcome, goal: Goal, seconds: float) -> dict[str, Any]:
    """The result as one JSON object."""
    return {
        "schema": SCHEMA,
        "kind": "tuned",
        "goal": goal.to_json(),
        "before": outcome.history.start[0].knobs.to_json(),
        "recommended": None if outcome.recommended is None else outcome.recommended.to_json(),
        "changed": outcome.changed,
        "expected": {name: estimate.to_json() for name, estimate in expected(outcome).items()},
        "runs": len(outcome.history.runs),
        "steps": [
            {
                "change": change_text(step),
                "setting": step.hypothesis.setting,
                "why": step.hypothesis.why,
                "evidence": list(step.hypothesis.evidence),
                "before": mean(step.before()).to_json() if step.pairs else None,
                "after": mean(step.after()).to_json() if step.pairs else None,
                **plain(step.judgement),
            }
            for step in outcome.history.steps
        ],
        "seen": [
            {
                "knobs": one.knobs.to_json(),
                "runs": one.runs,
                "figures": one.figures.to_json(),
                "pareto": one.best,
                "keeps_limits": one.keeps,
            }
            for one in seen(outcome.history, goal)
        ],
        "notes": advice(outcome, goal, seconds),
    }


def changes(before: Knobs, after: Knobs) -> Sequence[Setting]:
    """Which knobs the recommendation turns."""
    return before.differences(after)
