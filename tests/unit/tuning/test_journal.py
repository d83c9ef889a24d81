"""A tuning that was interrupted is gone through again with the runs that are there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.tuning.made_up import START, Listed, MadeUp
from tsbatch.errors import ServerError, UsageError
from tsbatch.simulation.service_time import parse
from tsbatch.tuning.journal import Journal, JournaledSystem, Log, read_lines, render_step
from tsbatch.tuning.objective import Goal
from tsbatch.tuning.tuner import Refused, Tuning

TWO, THREE = START.with_value("workers", 2), START.with_value("workers", 3)
TEN = parse("10ms")
ABOUT = {"model": "embed", "load": "8 clients"}


class Killed(Exception):
    pass


class Mortal(MadeUp):
    """Is killed at its n-th run."""

    def __init__(self, dies_at=None, **values):
        super().__init__(**values)
        self.dies_at = dies_at

    def measure(self, settings):
        if len(self.log) == self.dies_at:
            raise Killed
        return super().measure(settings)


def run(folder, system, listeners=(), **options):
    journal = Journal(folder, ABOUT, **options)
    written = JournaledSystem(system, journal)
    try:
        tuning = Tuning(system=written, search=Listed(TWO, THREE), goal=Goal(), start=START, listeners=listeners)
        outcome = tuning.run()
        written.settle()
        return outcome
    finally:
        journal.close()


def system(**values):
    return Mortal(rate=lambda settings: 100.0 * settings.workers, noise=0.0, refused=(THREE,), **values)


@pytest.mark.parametrize("dies_at", range(1, 8))
def test_it_goes_on_where_it_was_killed(tmp_path, dies_at):
    whole = run(tmp_path / "whole", system())
    first = system(dies_at=dies_at)
    with pytest.raises(Killed):
        run(tmp_path / "killed", first)
    second = system()
    outcome = run(tmp_path / "killed", second)
    assert outcome.recommended == whole.recommended == TWO
    assert [step.judgement for step in outcome.history.steps] == [step.judgement for step in whole.history.steps]
    # What was measured before the interruption is no pair with what comes after it.
    alone, once_more = [START] * (dies_at if dies_at < 4 else 0), [START, TWO] * (dies_at == 4)
    assert [*first.log, *second.log] == [*alone, *[START] * 4, TWO, *once_more, THREE, TWO, TWO]
    assert len({run.session for run in outcome.history.start}) == 1
    third = system()
    assert run(tmp_path / "killed", third).history == outcome.history
    assert third.log == []


class Faster(Mortal):
    """Is interrupted, and goes on on a machine that is twice as fast."""

    def measure(self, settings):
        found = super().measure(settings)
        factor = 1.0 if self.dies_at else 2.0
        return replace(found, figures=replace(found.figures, throughput=factor * found.figures.throughput))


@pytest.mark.parametrize("dies_at", [4, 5, 6, 7])
def test_a_machine_that_is_faster_after_an_interruption_is_no_gain(tmp_path, dies_at):
    def made(**values):
        return Faster(noise=0.01, **values)

    with pytest.raises(Killed):
        run(tmp_path, made(dies_at=dies_at))
    outcome = run(tmp_path, made())
    assert outcome.recommended == START
    for step in outcome.history.steps:
        assert all(before.session == after.session for before, after in step.pairs)


class Fickle(MadeUp):
    """Cannot have the candidate any more when it is measured a second time."""

    def measure(self, settings):
        if settings == TWO and TWO in self.log:
            raise Refused("no room for it now")
        return super().measure(settings)


def test_a_candidate_that_cannot_be_had_any_more_is_not_tried_again(tmp_path):
    outcome = run(tmp_path, Fickle(rate=lambda settings: 90.0 + 10.0 * settings.workers, noise=0.03))
    assert outcome.history.steps[0].judgement.verdict == "failed"
    assert len(outcome.history.steps[0].pairs) == 1
    again = MadeUp()
    assert run(tmp_path, again).history == outcome.history
    assert again.log == []


def test_what_ended_the_tuning_is_no_news_for_next_time(tmp_path):
    with pytest.raises(ServerError, match="the worker cannot load"):
        run(tmp_path, MadeUp(refused=(START,)))
    again = system()
    run(tmp_path, again)
    assert again.log[:4] == [START] * 4


def test_two_tunings_do_not_write_one_journal(tmp_path):
    first = Journal(tmp_path, ABOUT)
    with pytest.raises(UsageError, match=r"another tuning is writing .*journal\.jsonl; choose another"):
        Journal(tmp_path, ABOUT, fresh=True)
    first.close()
    Journal(tmp_path, ABOUT).close()


def test_a_setting_that_could_not_be_had_is_not_tried_again(tmp_path):
    run(tmp_path, system())
    again = system()
    run(tmp_path, again)
    assert again.log == []


def test_a_run_is_the_same_whether_it_was_just_made_or_is_in_the_journal(tmp_path):
    """Rounding on the way to the file must not make the search decide otherwise."""
    service = replace(TEN, spread=[0.123456789, 1.876543211])

    class Told(MadeUp):
        def measure(self, settings):
            return replace(super().measure(settings), service=service)

    journal = Journal(tmp_path, ABOUT)
    fresh = JournaledSystem(Told(), journal).measure(START)
    journal.close()
    journal = Journal(tmp_path, ABOUT)
    taken = JournaledSystem(MadeUp(), journal).measure(START)
    journal.close()
    assert fresh == taken
    assert taken.service.spread != service.spread


def test_half_a_line_at_the_end_is_left_out(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, system(dies_at=4))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    second = system()
    run(tmp_path, second)
    # One of the four was missing, and three of another go are none of what there is now.
    assert second.log[:5] == [START] * 4 + [TWO]


def test_the_journal_of_another_tuning_is_not_gone_on_with(tmp_path):
    Journal(tmp_path, ABOUT).close()
    with pytest.raises(
        UsageError, match="another tuning \\(different: load\\); choose another --output, or start over"
    ):
        Journal(tmp_path, {**ABOUT, "load": "9 clients"})
    Journal(tmp_path, {**ABOUT, "load": "9 clients"}, fresh=True).close()
    assert read_lines(tmp_path / "journal.jsonl")[0]["load"] == "9 clients"


@pytest.mark.parametrize(
    "text, says",
    [('{"a": 1}\n', "is not a journal of tsbatch tune"), ('{"kind": "tuning", "schema": 9}\n', "reads schema 1")],
)
def test_what_is_no_journal_is_said(tmp_path, text, says):
    (tmp_path / "journal.jsonl").write_text(text)
    with pytest.raises(UsageError, match=says):
        Journal(tmp_path, ABOUT)


def test_a_run_that_is_damaged_is_said(tmp_path):
    run(tmp_path, system())
    path = tmp_path / "journal.jsonl"
    lines = path.read_text().splitlines()
    lines[1] = json.dumps({"knobs": json.loads(lines[1])["knobs"]})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match="the journal is damaged"):
        run(tmp_path, system())


def test_runs_that_another_version_would_not_have_made_are_left_out(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, system(dies_at=5))
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text().replace('"batch_size":8', '"batch_size":7'))
    second, third = system(), system()
    run(tmp_path, second)
    assert second.log[0] == START
    run(tmp_path, third)
    assert third.log == []


def test_the_log_has_each_step_as_hypothesis_evidence_change_before_after_verdict(tmp_path):
    log = Log(tmp_path / "log.txt")
    outcome = run(tmp_path / "journal", system(), [log])
    log.close()
    text = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert "Baseline: workers=1, batchSize=8, maxBatchDelay=100" in text
    assert (
        "Step 1: workers 1 → 2\n  hypothesis  because\n  change      workers 1 → 2\n  before      requests/s 100"
        in text
    )
    assert "  verdict     kept: requests/s 100 → 200: improvement exceeds the noise" in text
    failed = render_step(2, outcome.history.steps[1])
    assert "before" not in failed
    assert "failed: these settings do not work: the worker cannot load" in failed
