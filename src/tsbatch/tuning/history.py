"""What was tried and what became of it: all that a search is fed with."""

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
"""Verdicts that hold beside one incumbent only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A setting that may be better, and why.

    Attributes:
        settings: the setting.
        setting: the one knob that is turned; None for a setting that a sampler drew.
        why: the reason, in a sentence or two.
        evidence: the numbers it stands on.
        predicted: what the simulator expects; None where it cannot tell.
        base: the setting from which the knob is turned, where that is not the incumbent but one that prepared this.
        prepares: the setting that comes next, where this one is only on the way to it.
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
    """Whether a candidate is better than what it was measured beside.

    Attributes:
        verdict: what follows.
        aim: in which respect they were compared.
        gain: the candidate's figure is so many times as good, 1.2 for 20 % better; ``low`` and ``high`` the interval in
            which that lies; None when it was not measured.
        visible: the gain from which on this many runs would have shown it.
        why: the verdict in a sentence.
    """

    verdict: Verdict
    aim: Aim
    why: str
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    visible: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One hypothesis, tried.

    Attributes:
        hypothesis: what was thought.
        baseline: what it was measured beside.
        pairs: one run of the incumbent and one of the candidate each, next to each other in time.
        judgement: what came out.
    """

    hypothesis: Hypothesis
    baseline: ModelSettings
    pairs: Sequence[tuple[Observation, Observation]]
    judgement: Judgement

    @property
    def kept(self) -> bool:
        """Whether the candidate is the incumbent from here on."""
        return self.judgement.verdict == "kept"

    @property
    def change(self) -> str:
        """The changed settings, and any others in which the start of the change differs from the baseline."""
        return self.hypothesis.change(self.baseline)

    def before(self) -> list[Figures]:
        """The incumbent's runs."""
        return [before.figures for before, _ in self.pairs]

    def after(self) -> list[Figures]:
        """The candidate's."""
        return [after.figures for _, after in self.pairs]


@dataclass(slots=True)
class History:
    """Everything so far, in order.

    Attributes:
        start: the runs of what was there at first.
        steps: the hypotheses that were tried.
        runs: every run in the order of time.
    """

    start: list[Observation] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    runs: list[Observation] = field(default_factory=list)

    @property
    def baseline(self) -> ModelSettings:
        """The best setting so far."""
        kept = [step.hypothesis.settings for step in self.steps if step.kept]
        return kept[-1] if kept else self.start[0].settings

    def kept(self) -> list[ModelSettings]:
        """Every setting that was the incumbent, the first one first."""
        return [self.start[0].settings, *(step.hypothesis.settings for step in self.steps if step.kept)]

    def steps_from_baseline(self) -> list[Step]:
        """The steps that were measured beside the present incumbent."""
        return [step for step in self.steps if step.baseline == self.baseline]

    def number(self, step: Step) -> int:
        """Which of the steps this is, from 1."""
        return next(number for number, one in enumerate(self.steps, 1) if one is step)

    def of(self, settings: ModelSettings) -> list[Observation]:
        """The runs of one setting."""
        return [run for run in self.runs if run.settings == settings]

    def tried(self) -> set[ModelSettings]:
        """Settings that were measured, or could not be; but not what was only no better than one since taken back."""
        kept = self.kept()
        void = [step for step in self.steps if step.baseline not in kept and step.judgement.verdict in RELATIVE]
        settled = {step.hypothesis.settings for step in self.steps if step not in void}
        measured = {run.settings for run in self.runs} | settled
        return measured - ({step.hypothesis.settings for step in void} - settled)
