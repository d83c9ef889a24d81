"""What a live server had is kept until it is back, and offered when a tuner was killed."""

from __future__ import annotations

import stat
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tsbatch.errors import UsageError
from tsbatch.ops import instance as instances
from tsbatch.ops import server
from tsbatch.ops.failure import ServerError
from tsbatch.ops.instance import own_process
from tsbatch.ops.processes import ProcessRef
from tsbatch.ops.tuning import restore

GONE = ProcessRef(2**22 - 1, 1.0)


@pytest.fixture(autouse=True)
def states(tmp_path, monkeypatch):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def instance(tmp_path):
    return SimpleNamespace(name="default", process=own_process(), owner=own_process(), log_dir=tmp_path)


class Management:
    """Settings that can be changed, and what was done to them."""

    def __init__(self, versions=("1.0",), **settings):
        self.settings = {"minWorkers": 2, "batchSize": 8, "maxBatchDelay": 50, **settings}
        self.all, self.done = list(versions), []

    def describe(self, name, version=None):
        return {**self.settings, "modelVersion": self.all[0]}

    def versions(self, name):
        return [{"modelVersion": version} for version in self.all]

    def unregister(self, name, version):
        self.done.append(("unregister", version))
        self.all.remove(version)


@pytest.fixture
def management(monkeypatch):
    made = Management()

    def reconfigure(management, instance, model, changes, tell):
        made.done.append(("reconfigure", dict(changes)))
        made.settings |= {"batchSize": changes["batch_size"], "maxBatchDelay": changes["max_batch_delay"]}

    def scale(management, model, workers, on_progress):
        made.done.append(("scale", workers))
        made.settings["minWorkers"] = workers

    monkeypatch.setattr(restore, "reconfigure", reconfigure)
    monkeypatch.setattr(restore.registration, "scale", scale)
    monkeypatch.setattr(restore, "drain", lambda *_: None)
    return made


def before(management, instance, **values):
    return replace(restore.Before.now(management, instance, "embed"), **values)


def test_what_is_kept_is_read_again_and_private(management, instance):
    kept = before(management, instance)
    restore.remember(instance, kept)
    assert restore.kept(instance) == kept
    assert str(kept) == "workers 2, batchSize 8, maxBatchDelay 50"
    path = restore.path_of("default")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert instances.names() == []  # it is no server's state file


def test_names_with_dots_have_a_file_of_their_own():
    assert len({restore.path_of(name) for name in ("a", "a.b", "a.c")}) == 3


def test_all_settings_are_put_back_and_forgotten(management, instance):
    restore.remember(instance, before(management, instance, tuner=GONE))
    management.settings |= {"minWorkers": 1, "batchSize": 32, "maxBatchDelay": 1}
    restore.restore(management, instance)
    assert management.settings == {"minWorkers": 2, "batchSize": 8, "maxBatchDelay": 50}
    assert restore.kept(instance) is None


def test_what_holds_already_is_left_alone(management, instance):
    restore.remember(instance, before(management, instance, tuner=GONE))
    restore.restore(management, instance)
    assert management.done == []


def test_a_version_that_a_killed_tuner_left_beside_the_default_one_goes(management, instance):
    management.all = ["1.0", "0.9"]
    restore.remember(instance, before(management, instance, tuner=GONE))
    management.all = ["1.0", "0.9", "1.0-r1"]
    restore.restore(management, instance)
    assert management.done == [("unregister", "1.0-r1")]


def test_nothing_to_put_back_is_said(management, instance):
    with pytest.raises(UsageError, match="nothing to put back"):
        restore.restore(management, instance)


def test_a_tuner_that_still_runs_is_left_alone(management, instance):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        restore.remember(instance, before(management, instance, tuner=ProcessRef.of(other.pid)))
        assert restore.offer(instance) is None
        with pytest.raises(UsageError, match="still runs"):
            restore.restore(management, instance)
        other.communicate()


def test_another_server_of_that_name_has_none_of_it(management, instance):
    restore.remember(instance, before(management, instance, server=GONE, tuner=GONE))
    assert restore.kept(instance) is None
    assert restore.offer(instance) is None


def test_what_cannot_be_put_back_is_still_kept(management, instance, monkeypatch):
    restore.remember(instance, before(management, instance, tuner=GONE))
    management.settings["minWorkers"] = 1
    monkeypatch.setattr(restore.registration, "scale", raising(ServerError("no")))
    with pytest.raises(ServerError):
        restore.restore(management, instance)
    assert restore.kept(instance) is not None


def raising(error):
    def fail(*_arguments, **_options):
        raise error

    return fail


def test_a_damaged_file_is_said_and_hinders_no_other_command(management, instance):
    restore.path_of("default").write_text("{")
    with pytest.raises(ServerError, match="remove it"):
        restore.kept(instance)
    assert restore.offer(instance) is None


def test_the_next_command_on_the_server_offers_it_in_one_line(management, instance, monkeypatch):
    monkeypatch.setattr(instances, "find", lambda name: instance)
    restore.remember(instance, before(management, instance, tuner=GONE))
    said = []
    assert server.reach("default", tell=said.append) is instance
    (line,) = said
    assert line.endswith("run: tsbatch tune --restore")
    assert "a tuning of embed was killed; to put back workers 2, batchSize 8, maxBatchDelay 50" in line
    restore.forget(instance)
    said.clear()
    server.reach("default", tell=said.append)
    assert said == []
