"""The history of a tuning: the hypotheses, the runs and the verdicts that a search works from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tsbatch.diagnosis.advice import Setting
from tsbatch.tuning.objective import Aim, Figures
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.search_space import ModelSettings

Verdict = Literal["kept", "on the way", "no gain", "breaks a limit", "cannot tell", "not confirmed", "failed"]

RELATIVE: Final = ("no gain", "cannot tell", "on the way")
"""Verdicts that are only valid against one baseline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Settings that may be better, and why.

    Attributes:
        settings: the settings.
        setting: the one setting that changes; None for settings that a sampler drew.
        why: the reason, in a sentence or two.
        evidence: the numbers behind it.
        predicted: the simulator's prediction; None if there is none.
        base: the settings that are changed, if they are not the baseline but an intermediate step.
        prepares: the settings to try next, if these are only an intermediate step.
    """

    settings: ModelSettings
    setting: Setting | None
    why: str
    evidence: Sequence[str] = ()
    predicted: Figures | None = None
    base: ModelSettings | None = None
    prepares: ModelSettings | None = None

    def change(self, baseline: ModelSettings) -> str:
        """Return the changed settings, and any others in which the start of the change differs from the baseline."""
        base = self.base or baseline
        changes, others = base.changes_to(self.settings), baseline.differences(base)
        return f"{changes} (with {base.values_of(others)})" if others else changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The comparison of a candidate with its baseline.

    Attributes:
        verdict: the conclusion.
        aim: the compared figure.
        gain: factor by which the candidate is better, 1.2 for 20 %; ``low`` and ``high`` its interval; None if not
            measured.
        visible: the smallest gain that this many runs would have shown.
        why: the verdict in a sentence.
    """

    verdict: Verdict
    aim: Aim
    why: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    visible: float | None = None

    @property
    def label(self) -> str:
        """The verdict as people read it."""
        return "intermediate step" if self.verdict == "on the way" else self.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One tested hypothesis.

    Attributes:
        hypothesis: the hypothesis.
        baseline: the settings that it was compared with.
        pairs: a run of the baseline and one of the candidate each, next to each other in time.
        judgement: the result.
    """

    hypothesis: Hypothesis
    baseline: ModelSettings
    pairs: Sequence[tuple[Observation, Observation]]
    judgement: Judgement

    @property
    def kept(self) -> bool:
        """Whether the candidate became the baseline."""
        return self.judgement.verdict == "kept"

    @property
    def change(self) -> str:
        """The changed settings, and any others in which the start of the change differs from the baseline."""
        return self.hypothesis.change(self.baseline)

    def before(self) -> list[Figures]:
        """Return the figures of the baseline's runs."""
        return [before.figures for before, _ in self.pairs]

    def after(self) -> list[Figures]:
        """Return the figures of the candidate's runs."""
        return [after.figures for _, after in self.pairs]


@dataclass(slots=True)
class History:
    """Everything so far, in order.

    Attributes:
        start: the first runs, of the initial settings.
        steps: the tested hypotheses.
        runs: all runs in chronological order.
    """

    start: list[Observation] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    runs: list[Observation] = field(default_factory=list)

    @property
    def baseline(self) -> ModelSettings:
        """The best settings so far."""
        kept = [step.hypothesis.settings for step in self.steps if step.kept]
        return kept[-1] if kept else self.start[0].settings

    def kept(self) -> list[ModelSettings]:
        """Return all settings that were the baseline, in order."""
        return [self.start[0].settings, *(step.hypothesis.settings for step in self.steps if step.kept)]

    def steps_from_baseline(self) -> list[Step]:
        """Return the steps that were compared with the current baseline."""
        return [step for step in self.steps if step.baseline == self.baseline]

    def number(self, step: Step) -> int:
        """Return the number of a step, from 1."""
        return next(number for number, one in enumerate(self.steps, 1) if one is step)

    def of(self, settings: ModelSettings) -> list[Observation]:
        """Return the runs with these settings."""
        return [run for run in self.runs if run.settings == settings]

    def tried(self) -> set[ModelSettings]:
        """Return the settings that were measured or failed, except those only compared with a baseline since undone."""
        kept = self.kept()
        void = [step for step in self.steps if step.baseline not in kept and step.judgement.verdict in RELATIVE]
        settled = {step.hypothesis.settings for step in self.steps if step not in void}
        measured = {run.settings for run in self.runs} | settled
        return measured - ({step.hypothesis.settings for step in void} - settled)
