"""The tuning loop: propose, measure alternately, keep or not, until nothing is left; then confirm.

::

    baseline, several times ─ proposal ─ baseline and candidate alternately ─ kept or not ─┐
                                 └────────────────────────────────────────────────────────┘
                                                  └ nothing left, or no runs ─ confirming runs ─ recommendation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from tsbatch.errors import ServerError
from tsbatch.tuning.history import History, Hypothesis, Judgement, Step
from tsbatch.tuning.objective import WORDS, Figures, Goal, mean
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.search import Search
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.significance import MAX_PAIRS, START_RUNS, doubtful, judge

BUDGET: Final = 36
"""Total runs: a quarter of the grid of 4 workers, 6 batch sizes and 6 delays."""

CONFIRM: Final = 2
"""Runs of the recommendation at the end."""

Ended = Literal["nothing left", "no runs left"]


class Refused(ServerError):
    """The server is healthy but cannot run with these settings, for example because the model failed to load."""


class System(Protocol):
    """The tuned system: anything that can be configured and measured."""

    def measure(self, settings: ModelSettings) -> Observation:
        """Run once with these settings.

        Raises:
            Refused: the system cannot run with these settings.
            ServerError: nothing can be measured any more.
        """


class Listener:
    """Follows a tuning, for example to display or log it; each method does nothing unless it is overridden."""

    def measuring(self, settings: ModelSettings, what: str, runs: int) -> None:
        """A run begins, after ``runs`` others."""

    def started(self, history: History) -> None:
        """The first runs of the baseline have shown its noise."""

    def proposed(self, hypothesis: Hypothesis, history: History) -> None:
        """A hypothesis is about to be tested."""

    def judged(self, step: Step, history: History) -> None:
        """A step got its verdict, or another one because it was undone."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a tuning.

    Attributes:
        history: everything that was tried.
        recommended: the settings to use; None if no measured settings meet the limits.
        confirmed: the recommendation's confirming runs, and those of settings that failed them.
        ended: why it stopped: nothing left that helps, or no runs left.
    """

    history: History
    recommended: ModelSettings | None
    confirmed: Sequence[Observation] = ()
    ended: Ended = "nothing left"

    @property
    def changed(self) -> bool:
        """Whether the recommendation differs from the initial settings."""
        return self.recommended is not None and self.recommended != self.history.start[0].settings

    def expected(self) -> list[Figures]:
        """Return the figures of all runs of the recommendation."""
        return [] if self.recommended is None else [run.figures for run in self.history.of(self.recommended)]


@dataclass(slots=True)
class Tuning:
    """A tuning in progress.

    Attributes:
        system: the tuned system.
        search: the search that proposes settings.
        goal: the goal.
        start: the initial settings.
        budget: total runs.
        listeners: notified of every step.
        confirmed: runs that were to confirm a recommendation.
    """

    system: System
    search: Search
    goal: Goal
    start: ModelSettings
    budget: int = BUDGET
    listeners: Sequence[Listener] = ()
    history: History = field(default_factory=History)
    confirmed: list[Observation] = field(default_factory=list)
    _refuted: set[ModelSettings] = field(default_factory=set, init=False)

    def run(self) -> Outcome:
        """Tune.

        Raises:
            ServerError: nothing can be measured any more; the journal has the runs so far.
        """
        self._measure_start()
        for listener in self.listeners:
            listener.started(self.history)
        ended = self._climb()
        while (best := self._best()) is not None:
            if self._confirms(best):
                return Outcome(self.history, best, self.confirmed, ended)
            self._undo(best)
            ended = self._climb()
        return Outcome(self.history, None, self.confirmed, ended)

    def _measure_start(self) -> None:
        while len(self.history.start) < START_RUNS:
            run = self._again(self.start, "baseline")
            # If the tuner was interrupted between them, the machine may be another one now.
            alike = [earlier for earlier in self.history.start if earlier.session == run.session]
            self.budget += len(self.history.start) - len(alike)
            self.history.start = [*alike, run]

    def _climb(self) -> Ended:
        """Test hypotheses until nothing is left to try."""
        while hypothesis := self.search.propose(self.history):
            if self._left() < 2:
                return "no runs left"
            for listener in self.listeners:
                listener.proposed(hypothesis, self.history)
            self.history.steps.append(self._try(hypothesis))
            self._judged(len(self.history.steps) - 1)
        return "nothing left"

    def _left(self) -> int:
        """Return the runs left for steps: without confirming the result, and the initial settings if that fails."""
        once = self.confirmed or self.history.baseline == self.start
        return self.budget - (1 if once else 2) * CONFIRM - len(self.history.runs)

    def _measure(self, settings: ModelSettings, what: str) -> Observation:
        for listener in self.listeners:
            listener.measuring(settings, what, len(self.history.runs))
        observation = self.system.measure(settings)
        self.history.runs.append(observation)
        return observation

    def _again(self, settings: ModelSettings, what: str) -> Observation:
        """Measure settings that worked before; if they fail now, it is not the candidate's fault."""
        try:
            return self._measure(settings, what)
        except Refused as error:
            raise ServerError(str(error)) from error

    def _try(self, hypothesis: Hypothesis) -> Step:
        baseline, pairs = self.history.baseline, list[tuple[Observation, Observation]]()
        judgement = Judgement(verdict="cannot tell", aim=self.goal.objective, why="no runs left to compare them")
        while len(pairs) < MAX_PAIRS and self._left() >= 2:
            try:
                pairs.append(self._pair(baseline, hypothesis.settings, len(pairs)))
            except Refused as error:
                why = f"these settings do not work: {error}"
                judgement = Judgement(verdict="failed", aim=judgement.aim, why=why)
                break
            figures = [(before.figures, after.figures) for before, after in pairs]
            judgement, final = judge(self.history, self.goal, figures)
            if hypothesis.prepares and judgement.verdict in ("no gain", "cannot tell"):
                # An intermediate step need not show a gain.
                judgement = replace(judgement, verdict="on the way")
                break
            if final:
                break
        return Step(hypothesis=hypothesis, baseline=baseline, pairs=pairs, judgement=judgement)

    def _pair(self, baseline: ModelSettings, candidate: ModelSettings, number: int) -> tuple[Observation, Observation]:
        """Measure both one after the other, in alternating order; a preceding run of the baseline is reused."""
        before: Observation | None = None
        if number % 2 == 0:
            latest = self.history.runs[-1]
            reusable = number == 0 and latest.settings == baseline
            before = latest if reusable else self._again(baseline, "baseline")
        after = self._measure(candidate, "candidate")
        before = before or self._again(baseline, "baseline")
        # If the tuner was interrupted between the two, the machine may be another one now.
        while before.session != after.session:
            self.budget += 1
            if before.session < after.session:
                before = self._again(baseline, "baseline")
            else:
                after = self._measure(candidate, "candidate")
        return before, after

    def _best(self) -> ModelSettings | None:
        """Return the latest kept settings whose runs together meet the limits and that did not fail to confirm."""
        for settings in reversed(self.history.kept()):
            if settings not in self._refuted and not self.goal.broken(self._typical(settings)):
                return settings
        return None

    def _typical(self, settings: ModelSettings) -> Figures:
        return mean([run.figures for run in self.history.of(settings)])

    def _confirms(self, settings: ModelSettings) -> bool:
        """Return whether settings meet the limits in each confirming run, and for certain over all their runs."""
        if self.budget - len(self.history.runs) < CONFIRM:
            return settings == self.start  # measured often already
        runs = [self._again(settings, "confirming the recommendation") for _ in range(CONFIRM)]
        self.confirmed += runs
        if any(self.goal.broken(run.figures) for run in runs):
            return False
        # Keeping the initial settings changes nothing.
        return settings == self.start or doubtful(self.history, self.goal, settings) is None

    def _undo(self, settings: ModelSettings) -> None:
        """Undo kept settings: the search continues from the settings before them, knowing these runs."""
        self._refuted.add(settings)
        for index, step in enumerate(self.history.steps):
            if step.kept and step.hypothesis.settings == settings:
                why = self._why_not(settings)
                judgement = replace(
                    step.judgement,
                    verdict="breaks a limit" if why else "not confirmed",
                    why=f"kept at first; {why}" if why else "kept at first; no runs were left to confirm it",
                )
                self.history.steps[index] = replace(step, judgement=judgement)
                self._judged(index)

    def _judged(self, index: int) -> None:
        for listener in self.listeners:
            listener.judged(self.history.steps[index], self.history)

    def _why_not(self, settings: ModelSettings) -> str | None:
        """Return why the confirming runs failed; None if there were none."""
        runs = [run for run in self.confirmed if run.settings == settings]
        over = [name for run in runs for name in self.goal.broken(run.figures)]
        if over:
            return f"a confirming run broke the limit on {WORDS[over[0]][0]}"
        return doubtful(self.history, self.goal, settings) if runs else None
