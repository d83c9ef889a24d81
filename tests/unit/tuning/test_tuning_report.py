from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.tuning.made_up import START, Listed, MadeUp, observation, step
from tsbatch.report.html_page import render
from tsbatch.tuning.history import History
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.tuner import Outcome, Tuning
from tsbatch.tuning.tuning_report import headline, report_of_tuning, step_columns, step_rows

TWO = START.with_value("workers", 2)
SMALLER = Goal(objective="memory", open_loop=True)


def unchanged(*verdicts, ended="nothing left"):
    start = [observation()] * 4
    steps = [step(TWO, verdict) for verdict in verdicts]
    return Outcome(History(start=start, steps=steps, runs=start), START, ended=ended)


def smaller():
    """A tuning for memory, which one worker less halves."""
    system = MadeUp(memory=lambda settings: 1e8 * settings.workers, noise=0.01)
    return Tuning(system=system, search=Listed(START), goal=SMALLER, start=TWO).run()


@pytest.mark.parametrize(
    "outcome, said",
    [
        (unchanged("no gain"), f"Nothing to gain: keep {START}"),
        (
            unchanged("no gain", "cannot tell", "cannot tell"),
            f"Inconclusive: noise hides the effect of 2 of 3 steps; keep {START}",
        ),
        (
            unchanged("failed", "failed"),
            f"Inconclusive: none of the settings that were tried works; keep {START}",
        ),
        (unchanged("no gain", ended="no runs left"), f"Not finished: no runs are left; keep {START}"),
    ],
)
def test_why_nothing_changes(outcome, said):
    assert headline(outcome, Goal()) == said


def test_what_was_gained_is_said_by_the_pairs_too():
    # A machine that became twice as slow between the steps: the ends alone would say that nothing was gained.
    start = [observation(rate=100, p99=50)] * 4
    pairs = [(observation(rate=50, p99=100), observation(TWO, rate=100, p99=50))] * 2
    gained = replace(step(TWO, "kept"), pairs=pairs)
    runs = [*start, *(one for pair in pairs for one in pair)]
    outcome = Outcome(History(start=start, steps=[gained], runs=runs), TWO)
    assert headline(outcome, Goal()) == (
        f"{TWO}: requests/s 100 → 100 (×2), P99 50 ms → 50 ms (×0.5); factors are from pairs of alternating runs"
    )


def test_memory_is_told_where_it_is_wanted():
    outcome = smaller()
    assert outcome.recommended == START
    assert headline(outcome, SMALLER).startswith(f"{START}: memory 200 MB → 100 MB (×0.5), P99 ")
    assert list(step_columns(SMALLER)) == ["step", "change", "requests/s", "P50 ms", "P99 ms", "memory MB", "verdict"]
    assert [row[5] for row in step_rows(outcome, SMALLER)] == [200.0, 100.0]
    page = render(report_of_tuning(outcome, SMALLER, {"model": "m"}, 10))
    for words in ("Memory and P99 of each setting", "better in both memory and P99", "memory MB", "100 MB"):
        assert words in page, words


def test_a_step_that_was_not_measured_has_a_row_as_long_as_the_others():
    nothing = replace(step(TWO, "failed"), pairs=[])
    outcome = Outcome(History(start=[observation(memory=None)], steps=[nothing]), START)
    for goal in (Goal(), SMALLER):
        first, second = step_rows(outcome, goal)
        assert len(first) == len(second) == len(step_columns(goal))
    assert first[5] is None


def test_the_report_tells_the_confirming_runs_alone():
    outcome = smaller()
    assert outcome.confirmed
    assert "Confirming runs alone: requests/s " in render(report_of_tuning(outcome, SMALLER, {}, 10))
