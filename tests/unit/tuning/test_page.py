from __future__ import annotations

from dataclasses import replace

from tests.unit.tuning.made_up import START, Listed, MadeUp, figures
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.page import render, render_ranking
from tsbatch.tuning.recommendation import Seen
from tsbatch.tuning.tuner import Tuning

TWO = START.with_value("workers", 2)
SMALLER = Goal(objective="memory", open_loop=True)


def shown(capsys, **changes):
    system = MadeUp(memory=lambda settings: 1e8 * settings.workers, noise=0.01)
    outcome = Tuning(system=system, search=Listed(START), goal=SMALLER, start=TWO).run()
    render(replace(outcome, **changes), SMALLER, 10)
    return capsys.readouterr().out.splitlines()


def test_the_figure_that_was_made_better_is_in_every_part(capsys):
    lines = shown(capsys)
    assert lines[0].startswith(f"{START}: memory 200 MB → 100 MB (×0.5), P99 ")
    steps = next(line for line in lines if line.startswith("step "))
    assert "memory MB" in steps
    assert any(line.startswith("memory") and line.split()[1:3] == ["100", "MB"] for line in lines)


def test_the_confirming_runs_stand_beside_all_of_them(capsys):
    lines = shown(capsys)
    heading = next(line for line in lines if line.startswith("expected"))
    assert heading.rstrip().endswith("confirming runs")
    assert next(line for line in lines if line.startswith("memory")).rstrip().endswith("100 MB")


def test_without_confirming_runs_there_is_no_column_for_them(capsys):
    assert not any("confirming" in line for line in shown(capsys, confirmed=()))


def test_the_ranking_has_memory_where_it_is_wanted(capsys):
    ranked = [Seen(START, 0, figures(memory=3e8)), Seen(TWO, 0, figures(memory=None))]
    render_ranking(ranked, SMALLER)
    out = capsys.readouterr().out
    assert "memory MB" in out
    assert "300.0" in out
    render_ranking(ranked, Goal())
    assert "memory" not in capsys.readouterr().out
