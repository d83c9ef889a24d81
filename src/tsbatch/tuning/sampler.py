"""The alternative search: Optuna's tree-structured Parzen estimator, which changes all settings at once.

Bergstra et al., "Algorithms for Hyper-Parameter Optimization" (NeurIPS 2011); https://optuna.org. It knows nothing of
batching and needs many measurements; it is an option, and the reference that the coordinate search has to beat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tsbatch.errors import UsageError
from tsbatch.tuning.history import History, Hypothesis
from tsbatch.tuning.objective import Figures, Goal, mean, merit
from tsbatch.tuning.observation import Observation
from tsbatch.tuning.search_space import FIELDS, SETTING_ORDER, ModelSettings, Space

DRAWS: Final = 50
"""Maximum draws until one has not been measured."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """Draw settings with Optuna; see :class:`tsbatch.tuning.search.Search`.

    Attributes:
        goal: the goal.
        space: the values to try.
        seed: of its random numbers.
    """

    goal: Goal
    space: Space
    seed: int = 0

    def propose(self, history: History) -> Hypothesis | None:
        """See :class:`tsbatch.tuning.search.Search`.

        Raises:
            UsageError: Optuna is not installed.
        """
        study = self._study(history.runs)
        tried = history.tried()
        for _ in range(DRAWS):
            trial = study.ask(self._distributions())
            settings = self._settings(trial.params)
            if settings not in tried:
                return Hypothesis(
                    settings=settings, setting=None, why="Drawn by Optuna's sampler from the measurements so far."
                )
            study.tell(
                trial, self._value(mean([run.figures for run in history.of(settings)] or [history.runs[-1].figures]))
            )
        return None

    def _study(self, runs: Sequence[Observation]) -> Any:
        try:
            import optuna
        except ImportError:
            raise UsageError('--search tpe needs Optuna; run: pip install "tsbatch[tune]"') from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # Another seed each time: the sampler is created for each proposal and would repeat its draws.
        sampler = optuna.samplers.TPESampler(seed=self.seed + len(runs), n_startup_trials=10)
        study = optuna.create_study(sampler=sampler, direction="minimize")
        distributions = self._distributions()
        for run in runs:
            values: dict[str, Any] = {setting: run.settings.value(setting) for setting in SETTING_ORDER}
            params = {setting: value for setting, value in values.items() if setting in distributions}
            if all(params[setting] in distribution.choices for setting, distribution in distributions.items()):
                value = self._value(run.figures)
                study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=value))
        return study

    def _distributions(self) -> dict[str, Any]:
        import optuna

        values = {setting: list(self.space.values(setting)) for setting in SETTING_ORDER}
        kind = optuna.distributions.CategoricalDistribution
        return {setting: kind(choices) for setting, choices in values.items() if len(choices) > 1}

    def _settings(self, params: Mapping[str, Any]) -> ModelSettings:
        values: dict[str, Any] = {
            field: params.get(setting, self.space.values(setting)[0]) for setting, field in FIELDS.items()
        }
        return ModelSettings(**values)

    def _value(self, figures: Figures) -> float:
        """Return the value to minimize: the objective, and how far limits are exceeded, which counts much more."""
        over = sum(math.log(figures.of(name) / self.goal.limits()[name]) for name in self.goal.broken(figures))
        return 10 * over - merit(figures, self.goal.objective)
