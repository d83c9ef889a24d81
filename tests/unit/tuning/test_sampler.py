from __future__ import annotations

import sys

import pytest

from tests.unit.tuning.made_up import MadeUp
from tsbatch.errors import UsageError
from tsbatch.tuning.history import History
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.sampler import Sampler
from tsbatch.tuning.search_space import ModelSettings, Space

SPACE = Space(workers=(1, 2, 3, 4), batch_sizes=(1, 8), delays=(1, 100))
START = ModelSettings(1, 8, 100)


def grown(system, runs, goal=None):
    """Measure what it draws, one setting after the other."""
    history, search = History(), Sampler(goal or Goal(), SPACE, seed=1)
    history.start.append(system.measure(START))
    history.runs.append(history.start[0])
    while len(history.runs) < runs and (proposed := search.propose(history)) is not None:
        history.runs.append(system.measure(proposed.settings))
    return history


def test_it_draws_settings_of_the_space_none_twice_until_none_is_left():
    history = grown(MadeUp(), 40)
    assert {run.settings for run in history.runs} == set(SPACE.combinations())
    assert len(history.runs) == len(SPACE.combinations())


def test_it_finds_what_is_better():
    history = grown(MadeUp(rate=lambda settings: 10.0**settings.workers / settings.delay), 12)
    assert max(run.figures.throughput for run in history.runs) >= 1000


def test_the_same_history_leads_to_the_same_draw():
    history = grown(MadeUp(), 5)
    draws = [Sampler(Goal(), SPACE, seed=1).propose(history) for _ in range(2)]
    assert draws[0] == draws[1]


def test_a_broken_limit_outweighs_the_objective():
    sampler = Sampler(Goal(p99=60), SPACE)
    system = MadeUp(rate=lambda settings: 100.0 * settings.workers, p99=lambda settings: 50.0 * settings.workers)
    good, bad = (system.measure(ModelSettings(workers, 8, 1)).figures for workers in (1, 2))
    assert sampler._value(good) < sampler._value(bad)


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r'pip install "tsbatch\[tune\]"'):
        grown(MadeUp(), 2)
