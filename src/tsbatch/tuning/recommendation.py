"""The result of a tuning: the recommendation, its expected figures, the conclusion and all measured settings."""

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
    """Measured or predicted settings.

    Attributes:
        settings: the settings.
        runs: number of runs.
        figures: the typical figures.
        best: whether they are on the Pareto front: no others are better in one of its two figures and as good in the
            other (:func:`figures_of_front`).
        keeps: whether they meet every limit.
    """

    settings: ModelSettings
    runs: int
    figures: Figures
    best: bool = False
    keeps: bool = True


def seen(history: History, goal: Goal) -> list[Seen]:
    """Return all measured settings in the order of their first run, with the Pareto front marked."""
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
    """Return the expected figures of the recommendation, with the confidence interval of the mean.

    They include the runs that made it win; :func:`confirming` returns the others.
    """
    runs = outcome.expected()
    known = {name: [value for one in runs if not math.isnan(value := one.of(name))] for name in NAMES}
    return {name: mean_of_runs(values) for name, values in known.items() if values}


def confirming(outcome: Outcome) -> list[Figures]:
    """Return the figures of the recommendation's runs that were made after it was chosen."""
    return [run.figures for run in outcome.confirmed if run.settings == outcome.recommended]


def advice(outcome: Outcome, goal: Goal, seconds: float) -> list[str]:
    """Return notes about the result, one sentence each.

    Args:
        outcome: the outcome.
        goal: the goal.
        seconds: duration of each run.
    """
    notes = {
        "nothing to recommend": [f"no settings were found that meet the limits: {goal}"],
        "nothing to gain": ["nothing to gain: no change brought more than the noise; keep the current settings"],
    }.get(conclusion(outcome), [])
    notes += _step_notes(outcome.history.steps, seconds)
    if cut_short(outcome):
        notes.append(
            "the tuning stopped because its runs were used up; there may be more to gain: re-run the same command with"
            " a larger --budget to continue"
        )
    return [*notes, *_memory_notes(outcome, goal), *_load_notes(outcome.history.runs)]


def _step_notes(steps: Sequence[Step], seconds: float) -> list[str]:
    notes, hidden = [], hidden_steps(steps)
    needed = [found for step in hidden if (found := seconds_needed(seconds, step)) is not None]
    if needed:
        # The journal treats runs of another length as another tuning.
        longer = f"--duration {max(2 * seconds, _rounded(max(needed))):g} --fresh (or another --output)"
        notes.append(
            f"the noise of this machine hides the effect of {len(hidden)} of {len(steps)} steps; start over with"
            f" longer runs: {longer}"
        )
    if failed := sum(step.judgement.verdict == "failed" for step in steps):
        notes.append(f"{failed} of the {len(steps)} settings that were tried did not work; the steps say why")
    return notes


def _load_notes(runs: Sequence[Observation]) -> list[str]:
    """Return the caveats about the load, each kind once."""
    counts = Counter(kind for run in runs for kind in run.doubts)
    texts = {kind: text for run in runs for kind, text in run.doubts.items()}
    return [f"{texts[kind]} (in {count} of {len(runs)} runs)" for kind, count in counts.items()]


def _memory_notes(outcome: Outcome, goal: Goal) -> list[str]:
    figures = [run.figures for run in outcome.history.of(outcome.recommended or outcome.history.start[0].settings)]
    notes = []
    if "gpu_memory" in goal.named_limits() and all(one.gpu_memory is None for one in figures):
        notes.append("--max-gpu-memory was not checked: the workers hold none, or nvidia-smi does not report it")
    if any(one.memory is not None for one in figures):
        return notes
    unread = "the workers' memory could not be read"
    if goal.memory is not None:
        notes.append(f"--max-memory was not checked: {unread}")
    if goal.objective == "memory":
        notes.append(f"{unread}, so memory use cannot be compared")
    return notes


def _rounded(seconds: float) -> float:
    return float(min(600, -(-seconds // 5) * 5))


def to_json(outcome: Outcome, goal: Goal, seconds: float) -> dict[str, Any]:
    """Return the result as one JSON object."""
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
    """Return the conclusion of a tuning.

    "nothing to gain" requires that all promising settings were tried and judged: if the noise hides one, or none
    worked, it is "cannot tell", and if the runs were used up before, "no runs left".
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
    """Return whether more runs might have found more."""
    return _unconfirmed(outcome) or outcome.ended == "no runs left"


def _unconfirmed(outcome: Outcome) -> bool:
    return any(step.judgement.verdict == "not confirmed" for step in outcome.history.steps)


def hidden_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the measured steps whose effect the noise hides."""
    return [step for step in steps if step.judgement.verdict == "cannot tell" and step.pairs]


def kept_path(outcome: Outcome) -> list[Step]:
    """Return the kept steps from the initial settings to the recommendation; none if one of them was undone."""
    wanted, found = outcome.recommended, list[Step]()
    for step in reversed(outcome.history.steps):
        if step.kept and step.hypothesis.settings == wanted:
            found.append(step)
            wanted = step.baseline
    return found[::-1] if wanted == outcome.history.start[0].settings else []


def gain(outcome: Outcome, name: Aim) -> float | None:
    """Return the factor between the initial settings' figure and the recommendation's, from the kept steps.

    Each pair was measured alternately, so a machine that became slower or faster does not affect it. None if there are
    no such pairs, or the figure is unknown.
    """
    factors = [mean(step.after()).of(name) / mean(step.before()).of(name) for step in kept_path(outcome)]
    product = math.prod(factors)
    return product if factors and math.isfinite(product) else None


def figures_of_headline(goal: Goal) -> list[Aim]:
    """Return the figures of the headline, the objective first."""
    # With a rate the load determines the requests/s.
    rate: list[Aim] = [] if goal.open_loop else ["throughput"]
    return list(dict.fromkeys([goal.objective, *rate, "p99", *_limited_memory(goal)]))


def figures_of_tables(goal: Goal) -> list[Aim]:
    """Return the figures of each table row; memory only if the goal names it."""
    wanted: list[Aim] = ["memory"] if goal.objective == "memory" else []
    return list(dict.fromkeys(["throughput", "p50", "p99", *wanted, *_limited_memory(goal)]))


def _limited_memory(goal: Goal) -> list[Aim]:
    return [name for name in goal.named_limits() if name in {"memory", "gpu_memory"}]


def figures_of_front(goal: Goal, found: Sequence[Figures]) -> tuple[Aim, Aim]:
    """Return the two figures of the Pareto front: the objective and P99, or what P99 is traded for.

    Args:
        goal: the goal.
        found: the figures of all measured settings; memory counts only if all of them have it.
    """
    known = all(one.memory is not None for one in found)
    usual: Aim = "p50" if goal.open_loop else "throughput"
    if goal.objective == "memory" or (goal.objective == "p99" and goal.open_loop):
        return ("memory" if known else usual), "p99"
    return (usual if goal.objective == "p99" else goal.objective), "p99"
