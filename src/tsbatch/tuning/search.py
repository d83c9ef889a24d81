"""Which setting to try next: the interface, and the careful search.

A search is fed with everything that was measured and says what to measure next. It keeps nothing to itself: the same
history leads to the same proposal, which is how a tuning that was interrupted goes on where it was.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tsbatch.diagnosis.advice import Setting, advise
from tsbatch.diagnosis.regimes import find_regime
from tsbatch.tuning.history import History, Hypothesis
from tsbatch.tuning.objective import EXACT, TINY, WORDS, Aim, Figures, Goal, Limit, merit, shown
from tsbatch.tuning.ranking import Ranking, Traffic
from tsbatch.tuning.search_space import SETTING_ORDER, ModelSettings, Space

HOPE: Final = 0.01
"""Logarithm of the gain that a prediction must promise."""

DOUBT: Final = -0.05
"""Logarithm of the loss from which on a prediction outweighs the diagnosis."""

HOPE_OF_TWO: Final = 0.05
"""As :data:`HOPE`, of two knobs together, which cost twice the runs."""

TWICE: Final = 2.0
"""What two knobs must promise, as a multiple of what one does that can be turned instead."""

HOPE_OF_A_GUESS: Final = 0.1
"""As :data:`HOPE`, of what is only not impossible, while every limit is kept."""

HOPELESS: Final = -1.0
"""Of a setting that is expected to break a limit."""

NEAR: Final = 0.1
"""Logarithm of the distance from a limit within which a prediction may be wrong about it."""

RISK: Final = 2.0
"""What a setting within it, on the wrong side, must promise for each part that it is expected to be over."""

EQUAL: Final = 0.01
"""Predictions that differ by less are the same."""

TRIES: Final = 2
"""Positions of one knob, or pairs of knobs, that are tried beside one incumbent."""

BUSY: Final = 0.5
"""Cores from which on a worker computes rather than waits, so that its threads matter."""


class Search(Protocol):
    """A generator of settings, fed with measurements."""

    def propose(self, history: History) -> Hypothesis | None:
        """What to measure next; None when there is nothing left that is worth it."""


@dataclass(frozen=True, slots=True)
class CoordinateSearch:
    """One knob at a time, as an engineer would turn them.

    First what the diagnosis of the incumbent says, to the position of that knob which the simulator likes best; then
    the other knobs, the most promising first. A knob of which the simulator promises nothing is left alone. Two knobs
    may promise more together than each alone: more workers help only when the first of them does not take all requests
    into its batch. Where they promise more than twice as much, for twice the runs, one is turned to prepare for the
    other, and both are kept or neither. At last come batch sizes between those that were seen: what they cost may lie
    below the line.

    Attributes:
        goal: what is wanted.
        space: the positions of the knobs.
        traffic: the load.
    """

    goal: Goal
    space: Space
    traffic: Traffic

    def propose(self, history: History) -> Hypothesis | None:
        """See :class:`Search`."""
        view = _View(self.goal, self.space, history, Ranking.of(history, self.traffic))
        return _second_of_two(view) or _single_or_two(view) or _curious(view)


class _View:
    """What the search looks at for one proposal.

    Args:
        goal: what is wanted.
        space: the positions of the knobs.
        history: everything so far.
        ranking: what the simulator expects.
    """

    def __init__(self, goal: Goal, space: Space, history: History, ranking: Ranking) -> None:
        self.goal, self.space, self.history, self._ranking = goal, space, history, ranking
        self.baseline, self.tried = history.baseline, history.tried()
        self.latest = history.latest(self.baseline)
        self.aim: Aim = goal.aim([run.figures for run in history.of(self.baseline)])
        self.base = ranking.predict(self.baseline)
        self.steps = history.since_last_kept()
        self.weary = Counter(step.hypothesis.setting for step in self.steps)
        evidence = self.latest.evidence
        self.finding = None if evidence is None else find_regime(evidence)
        self.advice = None
        if evidence is not None and self.finding is not None:
            self.advice = advise(self.finding.regime, evidence, self.latest.known)

    @property
    def advised(self) -> Setting | None:
        """The knob that the diagnosis names."""
        return self.advice.change.setting if self.advice and self.advice.change else None

    def choice(self, settings: ModelSettings, setting: Setting, *, at_best: bool = False) -> _Choice:
        """A setting with what is hoped of it."""
        predicted = self._ranking.predict(settings, at_best=at_best)
        if self.base is None or predicted is None or predicted.of(self.aim) != predicted.of(self.aim):
            return _Choice(setting, settings, 0.0, None)
        gain, excess = merit(predicted, self.aim) - merit(self.base, self.aim), self._excess(predicted)
        hope = HOPELESS if excess > NEAR else gain - RISK * max(0.0, excess)
        return _Choice(setting, settings, hope, predicted, clear=excess < -NEAR)

    def _excess(self, predicted: Figures) -> float:
        """Logarithm of how far a prediction is over the limits that the incumbent is expected to keep."""
        kept = self.goal.limits().keys() - (self.goal.broken(self.base) if self.base else [])
        return max((self._over(name, predicted.of(name)) for name in kept), default=-math.inf)

    def _over(self, name: Limit, value: float) -> float:
        limit = self.goal.limits()[name]
        if value != value or name in EXACT:
            return math.inf if value > limit else -math.inf
        return math.log(max(value, TINY) / max(limit, TINY))

    def distance(self, choice: _Choice) -> tuple[bool, int, float]:
        """What speaks against one of equals: little room to a limit, then how far it is, more workers counting most."""
        here, there = self.baseline, choice.settings
        others = abs(there.batch_size - here.batch_size) / 64 + abs(there.delay - here.delay) / 200
        return (
            not choice.clear,
            max(0, there.workers - here.workers),
            others + abs((there.threads or 0) - (here.threads or 0)),
        )

    def hypothesis(
        self, choice: _Choice, why: str, base: ModelSettings | None = None, prepares: ModelSettings | None = None
    ) -> Hypothesis:
        """A choice as a hypothesis with its evidence."""
        said = [f"{self.finding.regime}: {self.finding.headline}", *self.finding.evidence] if self.finding else []
        if choice.predicted is not None and self.base is not None:
            before, after = (shown(self.aim, one.of(self.aim)) for one in (self.base, choice.predicted))
            said.append(f"the simulator expects {WORDS[self.aim][0]} {before} → {after}")
        return Hypothesis(
            settings=choice.settings,
            setting=choice.setting,
            why=why,
            evidence=said,
            predicted=choice.predicted,
            base=base,
            prepares=prepares,
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    setting: Setting
    settings: ModelSettings
    hope: float
    predicted: Figures | None
    clear: bool = True

    @property
    def known(self) -> bool:
        """Whether the simulator can tell."""
        return self.predicted is not None


def _single_or_two(view: _View) -> Hypothesis | None:
    """The diagnosis's knob; else the most promising one, or two that together promise more for their runs."""
    single = _single(view)
    if single is None:
        return _first_of_two(view, HOPE_OF_TWO)
    # A broken limit, and memory, are a matter of every single step.
    patient = view.aim == view.goal.objective and view.aim not in EXACT and single.setting != view.advised
    two = _first_of_two(view, max(HOPE_OF_TWO, TWICE * single.hope)) if patient else None
    return two or view.hypothesis(single, _reason(view, single))


def _single(view: _View) -> _Choice | None:
    """The diagnosis's knob, or the most promising one; None when none promises anything."""
    choices = [
        found
        for setting in SETTING_ORDER
        if view.weary[setting] < TRIES and (found := _best(view, setting)) is not None
    ]
    # Where nothing can be predicted the order of the knobs is left.
    choices.sort(key=lambda choice: (choice.setting != view.advised, -choice.hope))
    return next((choice for choice in choices if _worth(view, choice)), None)


def _best(view: _View, setting: Setting) -> _Choice | None:
    """The most promising position of one knob that was not tried; of equals the nearest."""
    turns = [settings for settings in view.space.turns(view.baseline, setting) if settings not in view.tried]
    return _nearest_of_best(view, [view.choice(settings, setting) for settings in turns])


def _nearest_of_best(view: _View, choices: Sequence[_Choice]) -> _Choice | None:
    most = max((choice.hope for choice in choices), default=0.0)
    return min(
        (choice for choice in choices if choice.hope >= most - EQUAL),
        key=view.distance,
        default=None,
    )


def _worth(view: _View, choice: _Choice) -> bool:
    if choice.known:
        # The diagnosis may know better than a prediction, once.
        unheard = choice.setting == view.advised and not view.weary[choice.setting]
        return choice.hope >= HOPE or (unheard and choice.hope > DOUBT)
    if choice.setting != "threads" or choice.setting == view.advised:
        return True
    busy = view.latest.known.worker_cores
    return busy is not None and busy >= BUSY


def _reason(view: _View, choice: _Choice) -> str:
    if view.advice is not None and choice.setting == view.advised:
        return view.advice.why
    if choice.known:
        return f"Of the knobs that are left, this one promises most for {WORDS[view.aim][0]}."
    return "Nothing is known of its effect yet; the next knob in the usual order."


def _first_of_two(view: _View, least: float) -> Hypothesis | None:
    """The first of two knobs that together promise so much; None when no two do."""
    hypotheses = [step.hypothesis for step in view.steps]
    pairs = {one.prepares or one.settings for one in hypotheses if one.prepares is not None or one.base is not None}
    if view.base is None or len(pairs) >= TRIES:
        return None
    both = [
        view.choice(after, second)
        for first, second in itertools.combinations(SETTING_ORDER, 2)
        for before in view.space.turns(view.baseline, first)
        for after in view.space.turns(before, second)
        if after not in view.tried
    ]
    goal = _nearest_of_best(view, both)
    if goal is None or goal.hope < least:
        return None
    halves = [
        view.choice(view.baseline.turned(one, goal.settings.value(one)), one)
        for one in view.baseline.differences(goal.settings)
    ]
    half = max(halves, key=lambda choice: choice.hope)
    if half.settings in view.tried:
        return _last_half(view, goal.settings, half.settings)
    (other,) = half.settings.differences(goal.settings)
    why = (
        f"No single knob promises as much as two: this one prepares for {other} "
        f"{half.settings.value(other)} → {goal.settings.value(other)} after it."
    )
    return view.hypothesis(half, why, prepares=goal.settings)


def _second_of_two(view: _View) -> Hypothesis | None:
    """What the last step prepared, if it still promises something."""
    last = view.steps[-1].hypothesis if view.steps else None
    if last is None or last.prepares is None or last.prepares in view.tried:
        return None
    return _last_half(view, last.prepares, last.settings)


def _last_half(view: _View, goal: ModelSettings, half: ModelSettings) -> Hypothesis | None:
    (setting,) = half.differences(goal)
    choice = view.choice(goal, setting)
    if choice.hope < HOPE:
        return None
    return view.hypothesis(choice, "The second of two knobs that only help together.", base=half)


def _curious(view: _View) -> Hypothesis | None:
    """A batch size that may help, for all that is known of it."""
    turns = [settings for settings in view.space.turns(view.baseline, "batchSize") if settings not in view.tried]
    choice = _nearest_of_best(view, [view.choice(settings, "batchSize", at_best=True) for settings in turns])
    least = HOPE if view.aim != view.goal.objective else HOPE_OF_A_GUESS
    if choice is None or not choice.known or choice.hope < least:
        return None
    return view.hypothesis(choice, "Batches of this size were not seen, and may cost less than their neighbours tell.")
