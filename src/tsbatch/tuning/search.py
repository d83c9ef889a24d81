"""Choose the settings to try next: the interface, and the coordinate search.

A search gets every measurement so far and proposes what to measure next. It keeps no state: the same history leads to
the same proposal, so an interrupted tuning resumes where it stopped.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from tsbatch.diagnosis.advice import Setting, advise
from tsbatch.diagnosis.regimes import find_regime
from tsbatch.tuning.history import History, Hypothesis
from tsbatch.tuning.objective import EXACT, TINY, WORDS, Aim, Figures, Goal, Limit, merit, shown
from tsbatch.tuning.ranking import Ranking, Traffic
from tsbatch.tuning.search_space import SETTING_ORDER, ModelSettings, Space

MIN_GAIN: Final = 0.01
"""Logarithm of the gain that a prediction must promise."""

MAX_LOSS: Final = -0.05
"""Logarithm of the predicted loss from which on the prediction outweighs the diagnosis."""

MIN_PAIR_GAIN: Final = 0.05
"""As :data:`MIN_GAIN`, for changing two settings together, which costs twice the runs."""

PAIR_FACTOR: Final = 2.0
"""How many times the gain of the best single change two changes together must promise."""

MIN_OPTIMISTIC_GAIN: Final = 0.1
"""As :data:`MIN_GAIN`, for an optimistic prediction while every limit is met."""

OVER_LIMIT: Final = -1.0
"""Gain of settings that are expected to break a limit."""

NEAR: Final = 0.1
"""Logarithm of the distance from a limit within which a prediction may be wrong about it."""

RISK: Final = 2.0
"""Gain that settings must promise for each unit of logarithm by which they are expected to exceed a limit."""

EQUAL: Final = 0.01
"""Predictions that differ by less count as equal."""

TRIES: Final = 2
"""Values of one setting, or pairs of settings, that are compared with the same baseline."""

BUSY: Final = 0.5
"""Cores from which on a worker is computing rather than waiting, so that its threads matter."""


class Search(Protocol):
    """Propose settings from measurements."""

    def propose(self, history: History) -> Hypothesis | None:
        """Return what to measure next; None if nothing worth measuring is left."""


@dataclass(frozen=True, slots=True)
class CoordinateSearch:
    """Change one setting at a time, as an engineer would.

    First the setting that the diagnosis of the baseline names, with the value for which the simulator predicts most;
    then the other settings, the most promising first. A setting for which the simulator predicts no gain is left alone.
    Two settings may promise more together than each alone: more workers help only if the first of them does not take
    all requests into its batch. If two promise more than twice as much, for twice the runs, one is changed to prepare
    for the other, and both are kept or neither. Finally come batch sizes between the observed ones: their cost may lie
    below the line.

    Attributes:
        goal: what to improve.
        space: the values to try.
        traffic: the load.
    """

    goal: Goal
    space: Space
    traffic: Traffic

    def propose(self, history: History) -> Hypothesis | None:
        """See :class:`Search`."""
        view = _View(self.goal, self.space, history, Ranking(history.runs, self.traffic))
        return _second_of_pair(view) or _single_or_pair(view) or _unseen_batch_size(view)


class _View:
    """Everything that one proposal is based on.

    Args:
        goal: what to improve.
        space: the values to try.
        history: the measurements so far.
        ranking: the simulator's predictions.
    """

    def __init__(self, goal: Goal, space: Space, history: History, ranking: Ranking) -> None:
        self.goal, self.space, self._ranking = goal, space, ranking
        self.baseline, self.tried, self.steps = history.baseline, history.tried(), history.steps_from_baseline()
        runs = history.of(self.baseline)
        self.known = runs[-1].known
        self.aim: Aim = goal.aim([run.figures for run in runs])
        self.base = ranking.predict(self.baseline)
        self.tries = Counter(step.hypothesis.setting for step in self.steps)
        evidence = runs[-1].evidence
        self.finding = find_regime(evidence) if evidence else None
        self.advice = advise(self.finding.regime, evidence, self.known) if evidence and self.finding else None
        self.advised = self.advice.change.setting if self.advice and self.advice.change else None

    def best(self, setting: Setting, *, at_best: bool = False) -> _Choice | None:
        """Return the most promising untried value of one setting; of equal ones the nearest."""
        untried = [one for one in self.space.alternatives(self.baseline, setting) if one not in self.tried]
        return self.nearest_of_best(self.choice(one, setting, at_best=at_best) for one in untried)

    def nearest_of_best(self, choices: Iterable[_Choice]) -> _Choice | None:
        """Return the nearest of the choices with the greatest gain, or about that."""
        found = list(choices)
        least = max((choice.gain for choice in found), default=0.0) - EQUAL
        return min((choice for choice in found if choice.gain >= least), key=self.distance, default=None)

    def choice(self, settings: ModelSettings, setting: Setting, *, at_best: bool = False) -> _Choice:
        """Return settings with the gain that the simulator predicts for them."""
        predicted = self._ranking.predict(settings, at_best=at_best)
        if self.base is None or predicted is None or predicted.of(self.aim) != predicted.of(self.aim):
            return _Choice(setting, settings, 0.0, None)
        gain, excess = merit(predicted, self.aim) - merit(self.base, self.aim), self._excess(predicted)
        gain = OVER_LIMIT if excess > NEAR else gain - RISK * max(0.0, excess)
        return _Choice(setting, settings, gain, predicted, clear=excess < -NEAR)

    def _excess(self, predicted: Figures) -> float:
        """Return by how much a prediction exceeds the limits that the baseline is expected to meet, as a logarithm."""
        met = self.goal.limits().keys() - (self.goal.broken(self.base) if self.base else [])
        return max((self._over(name, predicted.of(name)) for name in met), default=-math.inf)

    def _over(self, name: Limit, value: float) -> float:
        limit = self.goal.limits()[name]
        if value != value or name in EXACT:
            return math.inf if value > limit else -math.inf
        return math.log(max(value, TINY) / max(limit, TINY))

    def distance(self, choice: _Choice) -> tuple[bool, int, float]:
        """Order choices of equal gain: those near a limit last, then by more workers, then by the other changes."""
        here, there = self.baseline, choice.settings
        others = abs(there.batch_size - here.batch_size) / 64 + abs(there.delay - here.delay) / 200
        threads = abs((there.threads or 0) - (here.threads or 0))
        return not choice.clear, max(0, there.workers - here.workers), others + threads

    def hypothesis(
        self, choice: _Choice, why: str, base: ModelSettings | None = None, prepares: ModelSettings | None = None
    ) -> Hypothesis:
        """Make a choice a hypothesis with its evidence."""
        evidence = [f"{self.finding.regime}: {self.finding.headline}", *self.finding.evidence] if self.finding else []
        if choice.predicted is not None and self.base is not None:
            before, after = (shown(self.aim, one.of(self.aim)) for one in (self.base, choice.predicted))
            evidence.append(f"the simulator expects {WORDS[self.aim][0]} {before} → {after}")
        return Hypothesis(
            settings=choice.settings,
            setting=choice.setting,
            why=why,
            evidence=evidence,
            predicted=choice.predicted,
            base=base,
            prepares=prepares,
        )


@dataclass(frozen=True, slots=True)
class _Choice:
    setting: Setting
    settings: ModelSettings
    gain: float
    predicted: Figures | None
    clear: bool = True


def _single_or_pair(view: _View) -> Hypothesis | None:
    """The diagnosis's setting; else the most promising one, or two that promise more together for their runs."""
    single = _single(view)
    if single is None:
        return _first_of_pair(view, MIN_PAIR_GAIN)
    # For a broken limit, and for memory, every single step counts.
    patient = view.aim == view.goal.objective and view.aim not in EXACT and single.setting != view.advised
    pair = _first_of_pair(view, max(MIN_PAIR_GAIN, PAIR_FACTOR * single.gain)) if patient else None
    return pair or view.hypothesis(single, _reason(view, single))


def _single(view: _View) -> _Choice | None:
    """The diagnosis's setting, or the most promising one; None if none promises anything."""
    choices = [best for setting in SETTING_ORDER if view.tries[setting] < TRIES and (best := view.best(setting))]
    # Without predictions the usual order of the settings decides.
    choices.sort(key=lambda choice: (choice.setting != view.advised, -choice.gain))
    return next((choice for choice in choices if _worth(view, choice)), None)


def _worth(view: _View, choice: _Choice) -> bool:
    if choice.predicted is not None:
        # The diagnosis may know better than a prediction, once.
        untested = choice.setting == view.advised and not view.tries[choice.setting]
        return choice.gain >= MIN_GAIN or (untested and choice.gain > MAX_LOSS)
    if choice.setting != "threads" or choice.setting == view.advised:
        return True
    busy = view.known.worker_cores
    return busy is not None and busy >= BUSY


def _reason(view: _View, choice: _Choice) -> str:
    if view.advice is not None and choice.setting == view.advised:
        return view.advice.why
    if choice.predicted is not None:
        return f"Of the remaining settings, this one promises the largest gain in {WORDS[view.aim][0]}."
    return "Its effect is not known yet; it is the next setting in the usual order."


def _first_of_pair(view: _View, min_gain: float) -> Hypothesis | None:
    """The first of two settings that promise so much together; None if no two do."""
    hypotheses = [step.hypothesis for step in view.steps]
    pairs = {one.prepares or one.settings for one in hypotheses if one.prepares is not None or one.base is not None}
    if view.base is None or len(pairs) >= TRIES:
        return None
    both = view.nearest_of_best(
        view.choice(after, second)
        for first, second in itertools.combinations(SETTING_ORDER, 2)
        for before in view.space.alternatives(view.baseline, first)
        for after in view.space.alternatives(before, second)
        if after not in view.tried
    )
    if both is None or both.gain < min_gain:
        return None
    goal = both.settings
    halves = [
        view.choice(view.baseline.with_value(one, goal.value(one)), one) for one in view.baseline.differences(goal)
    ]
    half = max(halves, key=lambda choice: choice.gain)
    if half.settings in view.tried:
        return _second_half(view, goal, half.settings)
    why = (
        "Changing two settings together looks better than any single change; this is the first of the two, before "
        f"{half.settings.changes_to(goal)}."
    )
    return view.hypothesis(half, why, prepares=goal)


def _second_of_pair(view: _View) -> Hypothesis | None:
    """What the last step prepared, if it still promises something."""
    last = view.steps[-1].hypothesis if view.steps else None
    if last is None or last.prepares is None or last.prepares in view.tried:
        return None
    return _second_half(view, last.prepares, last.settings)


def _second_half(view: _View, goal: ModelSettings, half: ModelSettings) -> Hypothesis | None:
    (setting,) = half.differences(goal)
    choice = view.choice(goal, setting)
    if choice.gain < MIN_GAIN:
        return None
    return view.hypothesis(choice, "The second of two settings that only help together.", base=half)


def _unseen_batch_size(view: _View) -> Hypothesis | None:
    """A batch size that may help, given the few observed ones."""
    choice = view.best("batchSize", at_best=True)
    min_gain = MIN_GAIN if view.aim != view.goal.objective else MIN_OPTIMISTIC_GAIN
    if choice is None or choice.predicted is None or choice.gain < min_gain:
        return None
    return view.hypothesis(
        choice, "Batches of this size were not seen, and may cost less than neighbouring sizes show."
    )
