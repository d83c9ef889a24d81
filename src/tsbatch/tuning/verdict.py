"""What a tuning comes to: whether it gained anything, why not, by how much, and which figures tell it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from tsbatch.tuning.history import Step
from tsbatch.tuning.objective import Aim, Figures, Goal, mean
from tsbatch.tuning.tuner import Outcome

Conclusion = Literal["changed", "nothing to gain", "cannot tell", "no runs left", "nothing to recommend"]


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
    if hidden(steps) or (steps and all(step.judgement.verdict == "failed" for step in steps)):
        return "cannot tell"
    return "no runs left" if cut_short(outcome) else "nothing to gain"


def cut_short(outcome: Outcome) -> bool:
    """Whether more runs might have found more."""
    return _unconfirmed(outcome) or outcome.ended == "no runs left"


def _unconfirmed(outcome: Outcome) -> bool:
    return any(step.judgement.verdict == "not confirmed" for step in outcome.history.steps)


def hidden(steps: Sequence[Step]) -> list[Step]:
    """The steps that were measured and could not be told from the noise."""
    return [step for step in steps if step.judgement.verdict == "cannot tell" and step.pairs]


def path(outcome: Outcome) -> list[Step]:
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
    factors = [mean(step.after()).of(name) / mean(step.before()).of(name) for step in path(outcome)]
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
