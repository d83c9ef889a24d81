"""A tuning's result: the recommendation, what to expect of it, and everything that was seen beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from tsbatch.bench.statistics import Estimate, mean_of_runs
from tsbatch.tuning.history import History, Step
from tsbatch.tuning.objective import Aim, Figures, Goal, mean, merit
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.significance import seconds_needed
from tsbatch.tuning.tuner import Outcome

SCHEMA: Final = 1
Conclusion = Literal["changed", "nothing to gain", "cannot tell", "no runs left", "nothing to recommend"]
NAMES: Final = ("throughput", "p50", "p99", "failed", "memory", "gpu_memory")


@dataclass(frozen=True, slots=True)
class Seen:
    """One setting that was measured.

    Attributes:
        settings: the setting.
        runs: how often.
        figures: the typical run.
        best: whether it is on the Pareto front: no other setting is better in one of the front's two figures, and as
            good in the other (:func:`tsbatch.tuning.recommendation.figures_of_front`).
        keeps: whether it keeps every limit.
    """

    settings: ModelSettings
    runs: int
    figures: Figures
    best: bool = False
    keeps: bool = True


def seen(history: History, goal: Goal) -> list[Seen]:
    """Every setting that was measured, in the order of its first run, with the Pareto front marked."""
    found = []
    for settings in dict.fromkeys(run.settings for run in history.runs):
        figures = [run.figures for run in history.of(settings)]
        found.append(Seen(settings, len(figures), mean(figures), keeps=not goal.broken(mean(figures))))
    names = figures_of_front(goal, [one.figures for one in found])
    return [
        replace(one, best=not any(_dominates(other.figures, one.figures, names) for other in found)) for one in found
    ]


def _dominates(one: Figures, other: Figures, names: tuple[Aim, ...]) -> bool:
    better = [merit(one, name) - merit(other, name) for name in names]
    return min(better) >= 0 and max(better) > 0


def expected(outcome: Outcome) -> dict[str, Estimate]:
    """What to expect of the recommendation, with the interval in which the mean of many runs would lie.

    From all of its runs, also those that made it win; :func:`confirming` has those that did not.
    """
    runs = outcome.expected()
    known = {name: [value for one in runs if not math.isnan(value := one.of(name))] for name in NAMES}
    return {name: mean_of_runs(values) for name, values in known.items() if values}


def confirming(outcome: Outcome) -> list[Figures]:
    """The recommendation's runs that were made after it was chosen, and had no part in that."""
    return [run.figures for run in outcome.confirmed if run.settings == outcome.recommended]


def advice(outcome: Outcome, goal: Goal, seconds: float) -> list[str]:
    """What to know about the result, one sentence each.

    Args:
        outcome: what was found.
        goal: what was wanted.
        seconds: how long each run was.
    """
    notes = {
        "nothing to recommend": [f"no setting was found that keeps the limits: {goal}"],
        "nothing to gain": ["nothing to gain: no single change helped by more than the noise; leave it as it is"],
    }.get(conclusion(outcome), [])
    notes += _of_steps(outcome.history.steps, seconds)
    if cut_short(outcome):
        notes.append(
            "it ended because its runs were used up; there may be more to gain: the same command with a larger --budget"
            " goes on where it was"
        )
    return [*notes, *_of_memory(outcome, goal), *_of_load(outcome.history.runs)]


def _of_steps(steps: Sequence[Step], seconds: float) -> list[str]:
    notes, untold = [], hidden_steps(steps)
    needed = [found for step in untold if (found := seconds_needed(seconds, step)) is not None]
    if needed:
        # Runs of another length are another tuning for the journal.
        longer = f"--duration {max(2 * seconds, _rounded(max(needed))):g} --fresh (or another --output)"
        notes.append(
            f"{len(untold)} of {len(steps)} steps could not be told from the noise of this machine; measure longer,"
            f" from the beginning: {longer}"
        )
    if failed := sum(step.judgement.verdict == "failed" for step in steps):
        notes.append(f"{failed} of {len(steps)} settings that were tried could not be had; the steps say why")
    return notes


def _of_load(runs: Sequence[Observation]) -> list[str]:
    """What makes the figures worth less than they look, each kind once."""
    counts = Counter(kind for run in runs for kind in run.doubts)
    texts = {kind: text for run in runs for kind, text in run.doubts.items()}
    return [f"{texts[kind]} (in {count} of {len(runs)} runs)" for kind, count in counts.items()]


def _of_memory(outcome: Outcome, goal: Goal) -> list[str]:
    figures = [run.figures for run in outcome.history.of(outcome.recommended or outcome.history.start[0].settings)]
    notes = []
    if "gpu_memory" in goal.named_limits() and all(one.gpu_memory is None for one in figures):
        notes.append("--max-gpu-memory was not checked: the workers hold none, or nvidia-smi does not tell")
    if any(one.memory is not None for one in figures):
        return notes
    unread = "the workers' memory could not be read"
    if goal.memory is not None:
        notes.append(f"--max-memory was not checked: {unread}")
    if goal.objective == "memory":
        notes.append(f"{unread}, so no setting can be said to need less of it")
    return notes


def _rounded(seconds: float) -> float:
    return float(min(600, -(-seconds // 5) * 5))


def to_json(outcome: Outcome, goal: Goal, seconds: float) -> dict[str, Any]:
    """The result as one JSON object."""
    found, confirmed = seen(outcome.history, goal), confirming(outcome)
    return {
        "schema": SCHEMA,
        "kind": "tuned",
        "goal": asdict(goal),
        "before": asdict(outcome.history.start[0].settings),
        "recommended": None if outcome.recommended is None else asdict(outcome.recommended),
        "changed": outcome.changed,
        "conclusion": conclusion(outcome),
        "expected": {name: estimate.to_json() for name, estimate in expected(outcome).items()},
        "confirming": asdict(mean(confirmed)) if confirmed else None,
        "runs": len(outcome.history.runs),
        "steps": [
            {
                "change": step.change,
                "setting": step.hypothesis.setting,
                "why": step.hypothesis.why,
                "evidence": list(step.hypothesis.evidence),
                "before": asdict(mean(step.before())) if step.pairs else None,
                "after": asdict(mean(step.after())) if step.pairs else None,
                **asdict(step.judgement),
            }
            for step in outcome.history.steps
        ],
        "front": list(figures_of_front(goal, [one.figures for one in found])),
        "seen": [
            {
                "knobs": asdict(one.settings),
                "runs": one.runs,
                "figures": asdict(one.figures),
                "pareto": one.best,
                "keeps_limits": one.keeps,
            }
            for one in found
        ],
        "notes": advice(outcome, goal, seconds),
    }


def conclusion(outcome: Outcome) -> Conclusion:
    """What it comes to, in a word.

    "nothing to gain" takes that every setting was tried and judged: where the noise hides one, or none could be had, it
    is "cannot tell", and where the runs were used up before, "no runs left".
    """
    if outcome.recommended is None:
        return "nothing to recommend"
    if outcome.changed:
        return "changed"
    steps = outcome.history.steps
    if _unconfirmed(outcome):
        return "no runs left"
    if hidden_steps(steps) or (steps and all(step.judgement.verdict == "failed" for step in steps)):
        return "cannot tell"
    return "no runs left" if cut_short(outcome) else "nothing to gain"


def cut_short(outcome: Outcome) -> bool:
    """Whether more runs might have found more."""
    return _unconfirmed(outcome) or outcome.ended == "no runs left"


def _unconfirmed(outcome: Outcome) -> bool:
    return any(step.judgement.verdict == "not confirmed" for step in outcome.history.steps)


def hidden_steps(steps: Sequence[Step]) -> list[Step]:
    """The steps that were measured and could not be told from the noise."""
    return [step for step in steps if step.judgement.verdict == "cannot tell" and step.pairs]


def kept_path(outcome: Outcome) -> list[Step]:
    """The kept steps that lead from what there was to the recommendation; none when one of them was taken back."""
    wanted, found = outcome.recommended, list[Step]()
    for step in reversed(outcome.history.steps):
        if step.kept and step.hypothesis.settings == wanted:
            found.append(step)
            wanted = step.baseline
    return found[::-1] if wanted == outcome.history.start[0].settings else []


def gain(outcome: Outcome, name: Aim) -> float | None:
    """The recommendation's figure is so many times what there was, by the pairs of the kept steps.

    Each pair was measured in turns, so a machine that became slower or faster meanwhile is no part of it. None when
    there are no such pairs, or the figure is unknown.
    """
    factors = [mean(step.after()).of(name) / mean(step.before()).of(name) for step in kept_path(outcome)]
    product = math.prod(factors)
    return product if factors and math.isfinite(product) else None


def figures_of_headline(goal: Goal) -> list[Aim]:
    """The figures in which a result is told, the objective first."""
    # With a rate the requests/s are the load's own.
    rate: list[Aim] = [] if goal.open_loop else ["throughput"]
    return list(dict.fromkeys([goal.objective, *rate, "p99", *_limited_memory(goal)]))


def figures_of_tables(goal: Goal) -> list[Aim]:
    """The figures of each setting in a table: memory where it is wanted."""
    wanted: list[Aim] = ["memory"] if goal.objective == "memory" else []
    return list(dict.fromkeys(["throughput", "p50", "p99", *wanted, *_limited_memory(goal)]))


def _limited_memory(goal: Goal) -> list[Aim]:
    return [name for name in goal.named_limits() if name in {"memory", "gpu_memory"}]


def figures_of_front(goal: Goal, found: Sequence[Figures]) -> tuple[Aim, Aim]:
    """The two figures of the Pareto front: the objective and P99, or what else P99 may be bought with.

    Args:
        goal: what was wanted.
        found: the figures of every setting that was measured; memory that some of them lack orders nothing.
    """
    known = all(one.memory is not None for one in found)
    usual: Aim = "p50" if goal.open_loop else "throughput"
    if goal.objective == "memory" or (goal.objective == "p99" and goal.open_loop):
        return ("memory" if known else usual), "p99"
    return (usual if goal.objective == "p99" else goal.objective), "p99"
