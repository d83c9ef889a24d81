"""What the commands of a running server print has the keys it had, and an older version's files lead on there."""

from __future__ import annotations

import pytest

from tests.surface import on_server, outputs, take

SNAPSHOT = take.read()["json_server"]


@pytest.fixture(scope="module")
def told(tmp_path_factory, state_folder):
    with pytest.MonkeyPatch.context() as patch:
        # The commands look for servers here, and the others of this session are nobody's business.
        state = tmp_path_factory.mktemp("state")
        patch.setenv("TSBATCH_STATE_DIR", str(state))
        found = on_server.told_by_server(tmp_path_factory.mktemp("surface") / "server")
        found["left"] = sorted(path.name for path in state.iterdir())
    return found


@pytest.fixture(scope="module")
def now(told):
    return take.plain(on_server.trees({name: value for name, value in told.items() if name != "left"}))


def test_the_same_commands_are_compared(now):
    assert set(now) == set(SNAPSHOT)


@pytest.mark.parametrize("name", SNAPSHOT)
def test_keys_and_types(now, name):
    different = take.differences(SNAPSHOT[name], outputs.alike(SNAPSHOT[name], now[name]))
    assert not different, "\n".join([f"{name}:", *different])


def test_the_archives_are_served(told):
    (rows,) = told["models, one"]["models"]
    assert (rows["name"], rows["version"], rows["workers"]) == ("rows", "1.0", 1)
    assert told["bench"]["summary"][0]["requests"] == 20
    assert told["bench"]["summary"][0]["failed"] == 0


def test_what_an_older_tuner_left_is_put_back(told):
    restored = told["tune --restore"]
    assert (restored["model"], restored["workers"]) == ("waiting", 1)
    assert (restored["batch_size"], restored["max_batch_delay"]) == (16, 60)
    assert told["scale"]["workers"] == 2
    (after,) = told["models, after that"]["models"]
    assert (after["workers"], after["version"]) == (1, "1.0")


def test_an_older_tuning_is_gone_on_with(told):
    tuned = told["tune"]
    assert tuned["recommended"] == {"workers": 3, "batch_size": 16, "delay": 1, "threads": None}
    assert tuned["runs"] == 13
    assert [step["verdict"] for step in tuned["steps"]] == ["kept", "kept", "cannot tell"]
    assert tuned["expected"]["throughput"]["value"] == pytest.approx(456.656, abs=0.001)
    assert tuned["confirming"]["requests"] == 982


def test_settings_are_ranked_from_an_older_journal(told):
    ranked = told["tune --offline"]["settings"]
    assert ranked[0]["keeps_limits"]
    assert ranked[0]["knobs"]["workers"] > 1


def test_nothing_is_left(told):
    assert told["stop"]["stopped"] == ["surface"]
    assert told["left"] == []
