"""The server in use gets back what it had, whatever happens."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.unit.tuning.made_up import observation
from tsbatch.errors import ServerError, UsageError
from tsbatch.operations import rollback
from tsbatch.operations.reconfiguration import changing
from tsbatch.system.processes import ProcessRef, own_process
from tsbatch.tuning.live_server import live_server
from tsbatch.tuning.private_server import settings_of
from tsbatch.tuning.search_space import ModelSettings
from tsbatch.tuning.tuner import Refused

GONE = ProcessRef(2**22 - 1, 1.0)
FOUND = ModelSettings(2, 8, 50)


class Bench:
    def run(self, instance, model, settings):
        return observation(settings)


def archive(folder, config):
    """A folder used as an archive."""
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text('{"model": {}}')
    (folder / "model-config.yaml").write_text(config)
    return folder


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server whose settings are in ``settings``, and that may end or fail."""
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path))
    made = SimpleNamespace(name="default", process=own_process(), log_dir=tmp_path, alive=True, fails=None)
    made.settings = {"modelVersion": "1.0", "minWorkers": 2, "batchSize": 8, "maxBatchDelay": 50, "responseTimeout": 60}
    made.settings |= {"maxWorkers": 2, "workers": []}
    made.work_dir, made.model_store = tmp_path / "work", tmp_path / "store"
    made.work_dir.mkdir()
    config = "responseTimeout: 99\ndeviceType: cpu\nhandler: {top: 3}\ntsbatch: {schema: 1}\n"
    made.settings["modelUrl"] = archive(made.model_store / "embed", config).name
    made.running = lambda: made.alive
    management = SimpleNamespace(
        describe=lambda name: dict(made.settings),
        versions=lambda name: [{"modelVersion": made.settings["modelVersion"]}],
    )
    made.management = lambda: nullcontext(management)

    def turn(management, instance, model, workers, batch_size, delay, tell=None, *, check_memory=True):
        if made.fails:
            raise made.fails
        made.settings |= {"minWorkers": workers, "batchSize": batch_size, "maxBatchDelay": delay}

    monkeypatch.setattr(rollback, "apply_settings", turn)
    monkeypatch.setattr(rollback, "SECONDS_BETWEEN_TRIES", 0)
    return made


def current(server):
    return settings_of(server.settings)


def test_the_archives_own_config_is_known_with_the_time_outs_that_hold(server):
    with live_server(server, "embed", Bench()) as live:
        assert live.config == {
            "responseTimeout": 60,
            "deviceType": "cpu",
            "handler": {"top": 3},
            "tsbatch": {"schema": 1},
        }


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ServerError("no"), ValueError])
def test_what_was_found_is_put_back_however_it_ends(server, error):
    ending = nullcontext() if error is None else pytest.raises((KeyboardInterrupt, ServerError, ValueError))
    with ending, live_server(server, "embed", Bench()) as live:
        assert live.start == FOUND
        live.measure(ModelSettings(1, 32, 1))
        assert current(server) == ModelSettings(1, 32, 1)
        assert rollback.saved(server) is not None
        if error is not None:
            raise error
    assert current(server) == FOUND
    assert rollback.saved(server) is None


def test_nobody_else_changes_the_model_meanwhile(server):
    with live_server(server, "embed", Bench()) as live:
        live.measure(ModelSettings(1, 32, 1))
        with pytest.raises(ServerError, match="tune --live is changing embed"), changing(server, "embed"):
            pass
    with changing(server, "embed"):
        with pytest.raises(ServerError, match="another reconfigure"), live_server(server, "embed", Bench()):
            pass
        assert rollback.saved(server) is None
        assert current(server) == FOUND
    with live_server(server, "embed", Bench()):
        pass


def test_ctrl_c_in_the_middle_of_the_end_does_not_leave_it_half_done(server, monkeypatch):
    put_back, asked = rollback.restore_settings, []

    def interrupted(*arguments):
        asked.append(1)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return put_back(*arguments)

    monkeypatch.setattr(rollback, "restore_settings", interrupted)
    live = live_server(server, "embed", Bench())
    with pytest.raises(KeyboardInterrupt), live:
        live.measure(ModelSettings(1, 32, 1))
    assert current(server) == FOUND
    assert rollback.saved(server) is None


def test_a_setting_that_has_no_room_is_refused_and_the_tuning_goes_on(server):
    with live_server(server, "embed", Bench()) as live:
        for server.fails in (UsageError("both versions need more memory"), ServerError("cannot load")):
            with pytest.raises(Refused):
                live.measure(ModelSettings(4, 32, 1))
        server.fails = None
    assert current(server) == FOUND


def test_a_server_that_ended_ends_the_tuning_and_has_nothing_to_put_back(server):
    with live_server(server, "embed", Bench()) as live:
        server.alive, server.fails = False, ServerError("cannot reach it")
        with pytest.raises(ServerError) as caught:
            live.measure(ModelSettings(1, 32, 1))
        assert not isinstance(caught.value, Refused)
    assert not rollback.path_of("default").exists()


def test_an_error_says_how_to_restore_what_could_not_be_restored(server):
    for failure in (ServerError("busy"), UsageError("busy")):
        said = pytest.raises(ServerError, match=r"could not restore .*: busy; .* tsbatch tune --restore")
        with said, live_server(server, "embed", Bench()) as live:
            live.measure(ModelSettings(1, 32, 1))
            server.fails = failure
        assert rollback.saved(server) is not None
        server.fails = None
        rollback.delete(server)


def test_a_version_that_somebody_deploys_meanwhile_ends_the_tuning_and_is_left_as_it_is(server, capsys):
    ending = pytest.raises(ServerError, match=r"version 2\.0 of embed is in use now")
    with ending as caught, live_server(server, "embed", Bench()) as live:
        live.measure(ModelSettings(1, 32, 1))
        server.settings |= {"modelVersion": "2.0", "batchSize": 3}
        live.measure(ModelSettings(1, 16, 1))
    assert not isinstance(caught.value, Refused)
    assert current(server) == ModelSettings(1, 3, 1)
    assert rollback.saved(server) is None
    assert "2.0" not in capsys.readouterr().err, "the error says it"


def test_a_version_that_somebody_deployed_in_time_for_the_end_is_told(server, capsys):
    with live_server(server, "embed", Bench()):
        server.settings |= {"modelVersion": "2.0", "batchSize": 3}
    assert current(server) == ModelSettings(2, 3, 50)
    assert "note: version 2.0 of embed is in use now" in capsys.readouterr().err


def test_what_a_killed_tuner_found_does_not_hold_for_a_version_deployed_since(server):
    with server.management() as management:
        rollback.save(server, replace(rollback.SavedSettings.now(management, server, "embed"), tuner=GONE))
    server.settings |= {"modelVersion": "2.0", "batchSize": 3}
    with live_server(server, "embed", Bench()) as live:
        assert live.start == ModelSettings(2, 3, 50)
        live.measure(ModelSettings(1, 32, 1))
    assert current(server) == ModelSettings(2, 3, 50)


def test_clients_that_name_the_version_are_spared(server, tmp_path, capsys):
    line = '2026-01-01T00:00:00,000 - /127.0.0.1:5 "POST /predictions/embed/1.0 HTTP/1.1" 200 3\n'
    (tmp_path / "access_log.log").write_text(line * 2 + line.replace("embed/1.0", "embed"))
    with pytest.raises(UsageError, match=r"2 requests in access_log\.log named version 1\.0 of embed.* without --live"):
        live_server(server, "embed", Bench()).__enter__()
    assert rollback.saved(server) is None
    (tmp_path / "access_log.log").write_text(line.replace("embed/1.0", "embed"))
    with live_server(server, "embed", Bench()):
        assert "clients that name version 1.0 get 404 from the first step on" in capsys.readouterr().err


def test_after_a_killed_tuner_what_it_found_is_what_comes_back(server):
    with server.management() as management:
        rollback.save(server, replace(rollback.SavedSettings.now(management, server, "embed"), tuner=GONE))
    server.settings |= {"minWorkers": 4, "batchSize": 64}
    with live_server(server, "embed", Bench()) as live:
        assert live.start == FOUND
        assert rollback.saved(server).tuner == own_process()
    assert current(server) == FOUND


def test_two_tunings_of_one_server_are_refused(server):
    with server.management() as management:
        before = rollback.SavedSettings.now(management, server, "other")
    rollback.save(server, replace(before, tuner=GONE))
    with pytest.raises(UsageError, match="a tuning of other was killed"), live_server(server, "embed", Bench()):
        pass
    for model in ("other", "embed"):
        rollback.save(server, replace(before, model=model))
        with (
            pytest.raises(UsageError, match=f"a tuning of {model} is already running"),
            live_server(server, "embed", Bench()),
        ):
            pass
    rollback.save(server, replace(before, model="embed"))
    with pytest.raises(UsageError, match="is already running"), live_server(server, "embed", Bench()):
        pass


def test_threads_of_a_server_in_use_stay(server):
    with live_server(server, "embed", Bench()) as live, pytest.raises(Refused, match="threads"):
        live.measure(ModelSettings(2, 8, 50, 1))
