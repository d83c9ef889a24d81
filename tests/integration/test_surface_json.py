"""Exit codes and what ``--json`` prints are what they were; see tests/surface/take.py."""

from __future__ import annotations

import pytest

from tests.surface import outputs, take

SNAPSHOT = take.read()


@pytest.fixture(scope="module")
def now(tmp_path_factory):
    return take.plain(outputs.offline(tmp_path_factory.mktemp("surface") / "json"))


def test_the_same_commands_are_compared(now):
    assert set(now) == set(SNAPSHOT["json"])


@pytest.mark.parametrize("name", SNAPSHOT["json"])
def test_keys_and_types(now, name):
    was, told = SNAPSHOT["json"][name], now[name]
    if name in outputs.MEASURED:
        told = outputs.alike(was, told)
    different = take.differences(was, told)
    assert not different, "\n".join([f"{name}:", *different])


def test_exit_codes(tmp_path):
    different = take.differences(SNAPSHOT["exit_codes"], outputs.exit_codes(tmp_path / "codes"))
    assert not different, "\n".join(different)


class TestTrees:
    def test_keys_and_types(self):
        assert outputs.tree({"b": [1, 2.5], "a": {"c": None, "d": True}, "e": []}) == {
            "a": {"c": "null", "d": "boolean"},
            "b": ["number"],
            "e": [],
        }

    def test_a_key_that_not_every_object_has(self):
        assert outputs.tree([{"a": 1}, {"a": "x", "b": 1}, {"a": 2}]) == [
            {"a": {"one of": ["number", "string"]}, "b?": "number"}
        ]

    def test_what_depends_on_the_machine(self):
        was = {"gpu": [], "memory": "null", "list": [{"a": "number"}], "b": "string"}
        assert outputs.alike(was, {"gpu": [{"a": "number"}], "memory": "number", "list": [], "b": "null"}) == was
        assert outputs.alike(was, {"gpus": []}) == {"gpus": []}
        assert outputs.alike({"a": "number"}, {"a": "string"}) == {"a": "string"}
