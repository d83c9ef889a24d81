"""Decide whether a candidate is better than the baseline, or only luckier.

Both are measured alternately, in pairs of neighbouring runs, so that a machine that slows down affects both alike. The
logarithm of each pair's ratio is one observation. The noise of such ratios is known from the first runs of the
baseline, and better with each step: the variance within every step is pooled. A candidate is kept if the interval of
its gain lies above "no change". Each step may look at its pairs several times and there are several steps, so the error
probability is divided among all of them: over a whole tuning at most :data:`LEVEL`.
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
"""Probability of keeping anything in a tuning where nothing helps."""

SHARE: Final = 0.2
"""Share of the remaining error probability that the next step may spend."""

MAX_PAIRS: Final = 5
START_RUNS: Final = 4
WORTH: Final = 1.02
"""Minimum gain that is worth a change, however certain it is."""

WANTED: Final = 1.1
"""Gain that must not be missed: if the noise could hide it, the advice is to run longer."""

MISS_LEVEL: Final = 0.1
"""Probability of rejecting a candidate that was worth it."""

LIMIT_LEVEL: Final = 0.05
"""Probability at each look that settings pass a limit that they break in the long run."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The noise of the logarithms of a pair's figures.

    Attributes:
        pair: standard deviation of their difference.
        freedom: its degrees of freedom.
    """

    pair: float
    freedom: int

    @property
    def run(self) -> float:
        """Standard deviation of one run."""
        return self.pair / math.sqrt(2)


def spread_of(history: History, aim: Aim, pairs: Sequence[tuple[Figures, Figures]] = ()) -> Spread:
    """Return the noise of one figure from the history and the pairs of the current step."""
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
    """Return the error probability for one look of the next step; ``look`` counts from 1.

    Later looks may spend more: a large gain shows at the first, a small one only at the last.
    """
    weight = look / (MAX_PAIRS * (MAX_PAIRS + 1) / 2)
    return LEVEL * SHARE * (1 - SHARE) ** len(history.steps) * weight


def judge(history: History, goal: Goal, pairs: Sequence[tuple[Figures, Figures]]) -> tuple[Judgement, bool]:
    """Judge a step from its pairs.

    Args:
        history: everything before this step.
        goal: the goal.
        pairs: figures of baseline and candidate, at least one pair.

    Returns:
        The current judgement, and whether it is final.
    """
    before, after = [one for one, _ in pairs], [one for _, one in pairs]
    aim = goal.aim(before)
    # A limit that the baseline breaks already is no argument against a candidate.
    kept = [name for name in goal.limits() if name not in goal.broken(mean(before))]
    if broken := [name for name in kept if breaks(history, goal, name, pairs, surely=True)]:
        return Judgement(verdict="breaks a limit", aim=aim, why=_over(goal, broken[0], after)), True
    last = len(pairs) >= MAX_PAIRS
    ratios = [merit(new, aim) - merit(old, aim) for old, new in pairs]
    spread = spread_of(history, aim, pairs)
    middle, error = sum(ratios) / len(ratios), spread.pair / math.sqrt(len(ratios))
    reach = error * student(spread.freedom, level_of(history, len(pairs)))
    interval = {"gain": middle, "low": middle - reach, "high": middle + reach, "visible": reach}
    factors = {name: math.exp(min(value, 50.0)) for name, value in interval.items()}

    def judged(verdict: str, why: str) -> Judgement:
        return Judgement(verdict=verdict, aim=aim, why=why, **factors)  # type: ignore[arg-type]

    change = f"{WORDS[aim][0]} {shown(aim, mean(before).of(aim))} → {shown(aim, mean(after).of(aim))}"
    if middle > reach and middle >= math.log(WORTH):
        near = [name for name in kept if breaks(history, goal, name, pairs)]
        if not near:
            return judged("kept", f"{change}: improvement exceeds the noise ({_percent(factors['visible'])})"), True
        return judged("breaks a limit", f"{change}, but {_over(goal, near[0], after, near=True)}"), last
    if middle + error * student(spread.freedom, MISS_LEVEL) < math.log(WORTH):
        return judged("no gain", f"{change}: no gain"), True
    if factors["high"] >= WANTED and factors["visible"] >= WANTED:
        why = f"{change}: the noise between runs hides differences below {_percent(factors['visible'])}"
        return judged("cannot tell", why), last
    return judged("no gain", f"{change}: within the noise ({_percent(factors['visible'])})"), last


def breaks(
    history: History, goal: Goal, name: Limit, pairs: Sequence[tuple[Figures, Figures]], *, surely: bool = False
) -> bool:
    """Return whether the candidate breaks a limit: for certain, or possibly."""
    after = [new for _, new in pairs]
    limit, value = goal.limits()[name], mean(after).of(name)
    if name in EXACT:
        return value > limit
    reach = _reach(spread_of(history, name, pairs), len(after))
    return math.log(max(value, 1e-9)) + (-reach if surely else reach) > math.log(limit)


def doubtful(history: History, goal: Goal, settings: ModelSettings) -> str | None:
    """Return why the runs of settings together do not show that they meet the limits; None if they do.

    A step whose baseline broke a limit keeps whatever comes closer to it; a recommendation has to be clear of it.
    """
    runs = [run.figures for run in history.of(settings)]
    for name, limit in goal.limits().items():
        value = mean(runs).of(name)
        reach = 0.0 if name in EXACT else _reach(spread_of(history, name), len(runs))
        if value * math.exp(reach) > limit:
            return _over(goal, name, runs, near=True)
    return None


def _reach(spread: Spread, runs: int) -> float:
    return spread.run / math.sqrt(runs) * student(spread.freedom, LIMIT_LEVEL)


def student(freedom: int, chance: float) -> float:
    """Return the one-sided quantile of Student's t distribution that is exceeded with probability ``chance``."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - chance))


def seconds_needed(seconds: float, step: Step) -> float | None:
    """Return how long runs would have to be to show a gain of :data:`WANTED`; None if they are long enough.

    The noise of a figure falls with the square root of the measured time.
    """
    visible = step.judgement.visible
    if step.judgement.verdict != "cannot tell" or visible is None:
        return None
    return seconds * (math.log(visible) / math.log(WANTED)) ** 2


def _over(goal: Goal, name: Limit, after: Sequence[Figures], *, near: bool = False) -> str:
    value, limit = shown(name, mean(after).of(name)), shown(name, goal.limits()[name])
    if near and mean(after).of(name) <= goal.limits()[name]:
        return f"{WORDS[name][0]} {value} is too close to the limit of {limit} to be certain"
    return f"{WORDS[name][0]} {value} exceeds the limit of {limit}"


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):.1f} %" if factor < 10 else "a factor of 10"
