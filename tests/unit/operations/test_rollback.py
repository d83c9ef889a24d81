"""What a live server had is kept until it is back, and offered when a tuner was killed."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tsbatch.errors import ServerError, UsageError
from tsbatch.operations import connection, rollback
from tsbatch.operations.reconfiguration import changing
from tsbatch.serving import instance as instances
from tsbatch.serving.management_client import ModelNotFound
from tsbatch.system.processes import ProcessRef, own_process

GONE = ProcessRef(2**22 - 1, 1.0)


@pytest.fixture(autouse=True)
def states(tmp_path, monkeypatch):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def instance(tmp_path):
    made = SimpleNamespace(name="default", process=own_process(), owner=own_process(), log_dir=tmp_path, alive=True)
    made.work_dir, made.running = tmp_path, lambda: made.alive
    return made


class Management:
    """Settings that can be changed, and what was done to them."""

    def __init__(self, versions=("1.0",), **settings):
        self.settings = {"minWorkers": 2, "maxWorkers": 2, "batchSize": 8, "maxBatchDelay": 50, **settings}
        self.all, self.done = list(versions), []
        self.lack = self.lack_for_more = lambda _: None

    def describe(self, name, version=None):
        return {**self.settings, "modelVersion": self.all[0]}

    def versions(self, name):
        return [{"modelVersion": version} for version in self.all]

    def unregister(self, name, version):
        self.done.append(("unregister", version))
        self.all.remove(version)

    def scale(self, name, workers, version=None, *, max_workers=None, synchronous=True):
        self.done.append(("scale", workers, max_workers))
        self.settings |= {"minWorkers": workers, "maxWorkers": max_workers}


@pytest.fixture
def management(monkeypatch):
    made = Management()

    def exchange(management, instance, model, before, settings, tell):
        made.done.append(("exchange", before["minWorkers"], dict(settings)))
        made.settings |= settings

    def scale(management, model, workers, on_progress):
        made.done.append(("scale", workers))
        made.settings |= {"minWorkers": workers, "maxWorkers": workers}
        return management.describe(model)

    monkeypatch.setattr(rollback, "exchange", exchange)
    monkeypatch.setattr(rollback, "lack_of_room", lambda described: made.lack(described))
    monkeypatch.setattr(rollback, "lack_for_more", lambda described, workers: made.lack_for_more(workers))
    monkeypatch.setattr(rollback.registration, "scale", scale)
    monkeypatch.setattr(rollback, "drain", lambda *_: None)
    monkeypatch.setattr(rollback, "SECONDS_BETWEEN_TRIES", 0)
    monkeypatch.setattr(rollback, "SECONDS_BETWEEN_LOOKS", 0)
    monkeypatch.setattr(rollback, "SECONDS_TO_FREE_MEMORY", 0.01)
    return made


def before(management, instance, **values):
    return replace(rollback.SavedSettings.now(management, instance, "embed"), **values)


def test_what_is_kept_is_read_again_and_private(management, instance):
    kept = before(management, instance)
    rollback.save(instance, kept)
    assert rollback.saved(instance) == kept
    assert str(kept) == "workers 2, batchSize 8, maxBatchDelay 50"
    path = rollback.path_of("default")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert instances.names() == []  # it is no server's state file


def test_names_with_dots_have_a_file_of_their_own():
    assert len({rollback.path_of(name) for name in ("a", "a.b", "a.c")}) == 3


def test_all_settings_are_put_back_and_forgotten(management, instance):
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.settings |= {"minWorkers": 1, "batchSize": 32, "maxBatchDelay": 1}
    rollback.restore(management, instance)
    assert management.settings == {"minWorkers": 2, "maxWorkers": 2, "batchSize": 8, "maxBatchDelay": 50}
    assert rollback.saved(instance) is None


def test_what_holds_already_is_left_alone(management, instance):
    rollback.save(instance, before(management, instance, tuner=GONE))
    rollback.restore(management, instance)
    assert management.done == []


def test_a_version_that_a_killed_tuner_left_beside_the_default_one_goes(management, instance):
    management.all = ["1.0", "0.9"]
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.all = ["1.0", "0.9", "1.0-r1"]
    rollback.restore(management, instance)
    assert management.done == [("unregister", "1.0-r1")]


def test_versions_of_others_stay(management, instance):
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.all = ["1.0-r2", "1.0", "2.0", "2.0-r1", "1.0-rc", "1.0-r3"]
    rollback.restore(management, instance)
    assert management.done == [("unregister", "1.0"), ("unregister", "1.0-r3")]
    assert management.all == ["1.0-r2", "2.0", "2.0-r1", "1.0-rc"]


def test_of_a_revision_that_was_tuned_the_other_revisions_go(management, instance):
    management.all = ["1.0-r4"]
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.all = ["1.0-r5", "1.0-r4", "1.0"]
    rollback.restore(management, instance)
    assert management.all == ["1.0-r5", "1.0"], "nobody but a person makes a version without a revision"


def test_a_model_that_somebody_else_deployed_since_is_left_as_it_is(management, instance):
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.all = ["2.0", "1.0-r3"]
    management.settings["batchSize"] = 64
    with pytest.raises(UsageError, match=r"^version 2\.0 of embed is in use now, .* settings stay unchanged$"):
        rollback.restore(management, instance)
    assert management.done == []
    assert rollback.saved(instance) is None


def test_a_model_that_is_gone_has_nothing_to_be_put_back(management, instance):
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.describe = raising(ModelNotFound("Model not found: embed"))
    with pytest.raises(UsageError, match="the server no longer has a model embed"):
        rollback.restore(management, instance)
    assert rollback.saved(instance) is None


def test_a_file_of_before_versions_were_kept_is_read(management, instance):
    rollback.save(instance, before(management, instance, tuner=GONE))
    path = rollback.path_of("default")
    values = json.loads(path.read_text())
    del values["version"], values["most"]
    path.write_text(json.dumps(values))
    management.all = ["1.0-r2", "1.0-r1", "2.0"]
    rollback.restore(management, instance)
    assert management.all == ["1.0-r2", "2.0"]


def test_workers_go_first_and_come_last(management, instance):
    """Each version has as few workers as can be while there are two."""
    rollback.apply_settings(management, instance, "embed", 4, 16, 50)
    assert [what[:2] for what in management.done] == [("exchange", 2), ("scale", 4)]
    management.done.clear()
    rollback.apply_settings(management, instance, "embed", 1, 8, 50)
    assert [what[:2] for what in management.done] == [("scale", 1), ("exchange", 1)]


def test_missing_memory_is_said_without_options_that_there_are_not(management, instance):
    management.lack = lambda described: f"no room for {described['minWorkers']}"
    rollback.apply_settings(management, instance, "embed", 1, 8, 50)  # for workers alone nothing is loaded beside them
    with pytest.raises(UsageError) as caught:
        rollback.apply_settings(management, instance, "embed", 1, 16, 50)
    assert str(caught.value) == "no room for 1; stop other programs that use memory"


def test_more_workers_are_not_started_without_memory_for_them(management, instance):
    management.lack_for_more = lambda workers: f"{workers} more do not fit"
    rollback.apply_settings(management, instance, "embed", 1, 16, 50)
    with pytest.raises(UsageError, match=r"^3 more do not fit; stop other programs that use memory$"):
        rollback.apply_settings(management, instance, "embed", 4, 16, 50)
    assert management.settings["minWorkers"] == 1


def test_memory_of_workers_that_are_just_ending_is_waited_for(management, instance, monkeypatch):
    monkeypatch.setattr(rollback, "SECONDS_TO_FREE_MEMORY", 60)
    answers = ["no room", "no room", None]
    management.lack_for_more = lambda workers: answers.pop(0)
    rollback.apply_settings(management, instance, "embed", 4, 8, 50)
    assert management.settings["minWorkers"] == 4
    assert answers == []


def test_workers_that_were_there_come_back_without_a_question(management, instance):
    was = before(management, instance)
    rollback.apply_settings(management, instance, "embed", 1, 8, 50)
    management.lack_for_more = lambda workers: "no room"
    rollback.restore_settings(management, instance, was)
    assert management.settings["minWorkers"] == 2


def test_while_somebody_else_changes_the_model_nothing_is_put_back(management, instance):
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.settings["minWorkers"] = 1
    with changing(instance, "embed"), pytest.raises(ServerError, match="is changing embed on this server; try again"):
        rollback.restore(management, instance)
    assert (management.done, rollback.saved(instance) is None) == ([], False)
    rollback.restore(management, instance)
    assert management.settings["minWorkers"] == 2


@pytest.mark.parametrize("found", [0, -10000])
def test_a_delay_of_0_or_less_comes_back_as_it_was(management, instance, found):
    management.settings["maxBatchDelay"] = found
    was = before(management, instance)
    rollback.apply_settings(management, instance, "embed", was.workers, was.batch_size, was.delay)
    assert management.done == []
    rollback.apply_settings(management, instance, "embed", 2, 8, 1)
    assert management.settings["maxBatchDelay"] == 1
    rollback.restore_settings(management, instance, was)
    assert management.settings["maxBatchDelay"] == found


def test_the_most_workers_come_back_where_they_differed(management, instance):
    management.settings["maxWorkers"] = 4
    was = before(management, instance)
    rollback.restore_settings(management, instance, was)
    assert management.done == []
    rollback.apply_settings(management, instance, "embed", 3, 8, 50)
    rollback.restore_settings(management, instance, was)
    assert management.done[-2:] == [("scale", 2), ("scale", 2, 4)]
    assert (management.settings["minWorkers"], management.settings["maxWorkers"]) == (2, 4)


def test_nothing_to_put_back_is_said(management, instance):
    with pytest.raises(UsageError, match="nothing to restore"):
        rollback.restore(management, instance)


def test_a_tuner_that_still_runs_is_left_alone(management, instance):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        rollback.save(instance, before(management, instance, tuner=ProcessRef.of(other.pid)))
        assert rollback.reminder(instance) is None
        with pytest.raises(UsageError, match="is still running"):
            rollback.restore(management, instance)
        other.communicate()


def test_another_server_of_that_name_has_none_of_it(management, instance):
    rollback.save(instance, before(management, instance, server=GONE, tuner=GONE))
    assert rollback.saved(instance) is None
    assert rollback.reminder(instance) is None


def test_what_cannot_be_put_back_is_still_kept(management, instance, monkeypatch):
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.settings["minWorkers"] = 1
    monkeypatch.setattr(rollback.registration, "scale", raising(ServerError("no")))
    with pytest.raises(ServerError):
        rollback.restore(management, instance)
    assert rollback.saved(instance) is not None


def test_a_worker_that_dies_while_the_settings_come_back_costs_a_try(management, instance, monkeypatch):
    """As a real server did: it took the new version and answered the next call with 500."""
    rollback.save(instance, before(management, instance, tuner=GONE))
    management.settings |= {"batchSize": 32}
    exchange, told = rollback.exchange, []

    def half(management, *arguments, **options):
        monkeypatch.setattr(rollback, "exchange", exchange)
        management.all.insert(0, "1.0-r1")
        exchange(management, *arguments, **options)
        raise ServerError("a worker died")

    monkeypatch.setattr(rollback, "exchange", half)
    rollback.restore(management, instance, told.append)
    assert management.settings["batchSize"] == 8
    assert management.all == ["1.0-r1"]
    assert rollback.saved(instance) is None
    assert told == ["trying again to restore the settings: a worker died"]


@pytest.mark.parametrize("alive, tries", [(True, rollback.TRIES), (False, 1)])
def test_a_server_that_fails_is_asked_again_a_few_times_and_one_that_ended_never(
    management, instance, monkeypatch, alive, tries
):
    rollback.save(instance, before(management, instance, tuner=GONE))
    instance.alive, asked = alive, []

    def fail(*_arguments, **_options):
        asked.append(1)
        raise ServerError("busy")

    monkeypatch.setattr(rollback, "apply_settings", fail)
    with pytest.raises(ServerError, match=r"^busy$"):
        rollback.restore(management, instance)
    assert len(asked) == tries


def raising(error):
    def fail(*_arguments, **_options):
        raise error

    return fail


def test_a_damaged_file_is_said_and_hinders_no_other_command(management, instance):
    rollback.path_of("default").write_text("{")
    with pytest.raises(ServerError, match="remove it"):
        rollback.saved(instance)
    assert rollback.reminder(instance) is None


def test_the_next_command_on_the_server_offers_it_in_one_line(management, instance, monkeypatch):
    monkeypatch.setattr(instances, "find", lambda name: instance)
    rollback.save(instance, before(management, instance, tuner=GONE))
    said = []
    assert connection.reach("default", tell=said.append) is instance
    (line,) = said
    assert line.endswith("run: tsbatch tune --restore")
    assert "a tuning of embed was killed; to restore workers 2, batchSize 8, maxBatchDelay 50" in line
    rollback.delete(instance)
    said.clear()
    connection.reach("default", tell=said.append)
    assert said == []
