"""Whether a candidate is better than the incumbent, or only luckier.

Both are measured in turns, in pairs of neighbouring runs, so that a machine that gets slower meanwhile hits both alike.
The logarithm of each pair's ratio is one observation. How far such ratios lie apart when nothing has changed is known
from the incumbent's first runs, and better with each step: the spread inside every step is pooled. A candidate is kept
when the interval of its gain lies above "no change". Each step may look at its pairs several times and there are
several steps, so the chance of error is divided among all of them: over a whole tuning at most :data:`LEVEL`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tsbatch.bench.comparison import MIN_SPREAD
from tsbatch.tuning.history import History, Judgement, Step
from tsbatch.tuning.objective import EXACT, WORDS, Aim, Figures, Goal, Limit, mean, merit, shown
from tsbatch.tuning.search_space import ModelSettings

LEVEL: Final = 0.05
"""The chance to keep anything at all in a tuning where nothing helps."""

SHARE: Final = 0.2
"""Of the error that is still allowed, what the next step may spend. The first have the fewest runs behind them."""

MAX_PAIRS: Final = 5
START_RUNS: Final = 4
WORTH: Final = 1.02
"""A smaller gain is not worth a change, however sure it is."""

WANTED: Final = 1.1
"""A gain that must not be overlooked: where the noise could hide it, longer runs are asked for."""

LAX: Final = 0.1
"""Chance of giving up a candidate that was worth it."""

CAREFUL: Final = 0.05
"""Chance that a setting counts as keeping a limit that it breaks in the long run, each time that is looked at."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How far apart the logarithms of a pair's figures lie when nothing has changed.

    Attributes:
        pair: standard deviation of their difference.
        freedom: degrees of freedom behind it.
    """

    pair: float
    freedom: int

    @property
    def run(self) -> float:
        """Standard deviation of one run."""
        return self.pair / math.sqrt(2)


def spread_of(history: History, aim: Aim, pairs: Sequence[tuple[Figures, Figures]] = ()) -> Spread:
    """The spread of one figure by everything so far, and by the pairs of the step under way."""
    first = [merit(run.figures, aim) for run in history.start]
    squares, freedom = 2 * _squares(first), len(first) - 1
    steps = [list(zip(step.before(), step.after(), strict=True)) for step in history.steps]
    for step in (*steps, pairs):
        if len(step) > 1:
            squares += _squares([merit(after, aim) - merit(before, aim) for before, after in step])
            freedom += len(step) - 1
    least = MIN_SPREAD * math.sqrt(2)
    return Spread(max(least, math.sqrt(squares / freedom)) if freedom else math.inf, max(1, freedom))


def _squares(values: Sequence[float]) -> float:
    middle = sum(values) / len(values)
    return sum((value - middle) ** 2 for value in values)


def level_of(history: History, look: int) -> float:
    """The chance of error that one look of the next step may spend; ``look`` counts from 1.

    Later ones may spend more: what is great shows at the first, and what is small only at the last.
    """
    weight = look / (MAX_PAIRS * (MAX_PAIRS + 1) / 2)
    return LEVEL * SHARE * (1 - SHARE) ** len(history.steps) * weight


def judge(history: History, goal: Goal, pairs: Sequence[tuple[Figures, Figures]]) -> tuple[Judgement, bool]:
    """What the pairs of a step say, and whether more of them could say more.

    Args:
        history: everything before this step.
        goal: what is wanted.
        pairs: incumbent's and candidate's figures, at least one pair.

    Returns:
        The judgement as it is now, and whether it is final.
    """
    before, after = [one for one, _ in pairs], [one for _, one in pairs]
    aim = goal.aim(before)
    # What the incumbent breaks already is no reason against a candidate that makes it better.
    kept = [name for name in goal.limits() if name not in goal.broken(mean(before))]
    if broken := [name for name in kept if breaks(history, goal, name, pairs, surely=True)]:
        return Judgement(verdict="breaks a limit", aim=aim, why=_over(goal, broken[0], after)), True
    last = len(pairs) >= MAX_PAIRS
    ratios = [merit(new, aim) - merit(old, aim) for old, new in pairs]
    spread = spread_of(history, aim, pairs)
    middle, error = sum(ratios) / len(ratios), spread.pair / math.sqrt(len(ratios))
    reach = error * student(spread.freedom, level_of(history, len(pairs)))
    interval = {"gain": middle, "low": middle - reach, "high": middle + reach, "visible": reach}
    told = {name: math.exp(min(value, 50.0)) for name, value in interval.items()}

    def judged(verdict: str, why: str) -> Judgement:
        return Judgement(verdict=verdict, aim=aim, why=why, **told)  # type: ignore[arg-type]

    said = f"{WORDS[aim][0]} {shown(aim, mean(before).of(aim))} → {shown(aim, mean(after).of(aim))}"
    if middle > reach and middle >= math.log(WORTH):
        near = [name for name in kept if breaks(history, goal, name, pairs)]
        if not near:
            return judged("kept", f"{said}: improvement exceeds the noise ({_percent(told['visible'])})"), True
        return judged("breaks a limit", f"{said}, but {_over(goal, near[0], after, near=True)}"), last
    if middle + error * student(spread.freedom, LAX) < math.log(WORTH):
        return judged("no gain", f"{said}: no gain"), True
    if told["high"] >= WANTED and told["visible"] >= WANTED:
        why = f"{said}: the noise between runs hides differences below {_percent(told['visible'])}"
        return judged("cannot tell", why), last
    return judged("no gain", f"{said}: within the noise ({_percent(told['visible'])})"), last


def breaks(
    history: History, goal: Goal, name: Limit, pairs: Sequence[tuple[Figures, Figures]], *, surely: bool = False
) -> bool:
    """Whether the candidate breaks a limit: surely, or as far as cannot be ruled out."""
    after = [new for _, new in pairs]
    limit, value = goal.limits()[name], mean(after).of(name)
    if name in EXACT:
        return value > limit
    reach = _reach(spread_of(history, name, pairs), len(after))
    return math.log(max(value, 1e-9)) + (-reach if surely else reach) > math.log(limit)


def doubtful(history: History, goal: Goal, settings: ModelSettings) -> str | None:
    """Why a setting, by all of its runs together, cannot be said to keep the limits; None when it can.

    A step whose incumbent broke a limit keeps whatever comes nearer to it; what is recommended has to be clear of it.
    """
    runs = [run.figures for run in history.of(settings)]
    for name, limit in goal.limits().items():
        value = mean(runs).of(name)
        reach = 0.0 if name in EXACT else _reach(spread_of(history, name), len(runs))
        if value * math.exp(reach) > limit:
            return _over(goal, name, runs, near=True)
    return None


def _reach(spread: Spread, runs: int) -> float:
    return spread.run / math.sqrt(runs) * student(spread.freedom, CAREFUL)


def student(freedom: int, chance: float) -> float:
    """How many standard errors something lies off by chance in one direction at most, but for ``chance``."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - chance))


def seconds_needed(seconds: float, step: Step) -> float | None:
    """How long runs would have to be for a gain of :data:`WANTED` to show; None when they are long enough.

    The spread of a figure falls with the square root of the time that it is measured.
    """
    visible = step.judgement.visible
    if step.judgement.verdict != "cannot tell" or visible is None:
        return None
    return seconds * (math.log(visible) / math.log(WANTED)) ** 2


def _over(goal: Goal, name: Limit, after: Sequence[Figures], *, near: bool = False) -> str:
    value, limit = shown(name, mean(after).of(name)), shown(name, goal.limits()[name])
    if near and mean(after).of(name) <= goal.limits()[name]:
        return f"{WORDS[name][0]} {value} is too near to the limit of {limit} to be sure of it"
    return f"{WORDS[name][0]} {value} is over the limit of {limit}"


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):.1f} %" if factor < 10 else "a factor of 10"
