"""Settings: read, checked, and wrong ones explained."""

from __future__ import annotations

import difflib
from typing import Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

import tsbatch
from tsbatch.errors import SettingsError, Unprocessable
from tsbatch.settings import Section, Settings, load_settings, parse_parameters, parse_section


class Wish(Section):
    dimensions: int | None = None
    mode: Literal["fast", "exact"] = "fast"


def failure(config):
    with pytest.raises(SettingsError) as caught:
        load_settings(config)
    message = str(caught.value)
    assert "\n" not in message, "one line"
    assert message.startswith("model-config.yaml: ")
    return message


@pytest.mark.parametrize(
    "config", [None, {}, {"tsbatch": None}, {"tsbatch": {}}, {"batchSize": 8, "handler": {"x": 1}}]
)
def test_everything_has_a_default(config):
    settings = load_settings(config)
    assert settings == Settings()
    assert (settings.threads, settings.device, settings.trust_remote_code) == ("auto", "auto", False)
    assert (settings.limits.items, settings.limits.characters, settings.limits.image_pixels) == (
        64,
        100_000,
        50_000_000,
    )
    assert settings.limits.response_bytes == 6_553_500, "TorchServe's own default"


def test_auto_without_a_proof_is_refused_instead_of_ignored():
    message = failure({"tsbatch": {"batching": {"proof": "skip"}}})
    assert message.startswith("model-config.yaml: tsbatch.batching.proof: skip needs a mode other than auto")
    assert load_settings({"tsbatch": {"batching": {"proof": "skip", "mode": "equal"}}}).batching.mode == "equal"


def test_a_whole_section():
    settings = load_settings(
        {
            "tsbatch": {
                "schema": 1,
                "version": "0.1.0",
                "task": "text-embedding",
                "threads": 2,
                "aux": {"labels": "labels.json"},
                "limits": {"items": 8},
                "batching": {"mode": "padded", "max_tokens": 4096, "deduplicate": True, "isolation_seconds": 5},
                "telemetry": {"server_timing": False, "metrics": True},
            }
        }
    )
    assert settings.threads == 2
    assert settings.aux == {"labels": "labels.json"}
    assert settings.limits.items == 8
    assert settings.batching.max_tokens == 4096
    assert settings.batching.deduplicate is True
    assert settings.telemetry.metrics is True


def test_settings_are_frozen():
    settings = load_settings({})
    with pytest.raises(ValidationError):
        settings.threads = 3
    with pytest.raises(ValidationError):
        settings.limits.items = 3


@pytest.mark.parametrize(
    "section, key, near",
    [
        ({"thread": 2}, "tsbatch.thread ", "'threads'"),
        ({"shema": 1}, "tsbatch.shema ", "'schema'"),
        ({"limits": {"item": 2}}, "tsbatch.limits.item ", "'items'"),
        ({"batching": {"max_feature": 2}}, "tsbatch.batching.max_feature ", "'max_features'"),
        ({"telemetry": {"servertiming": False}}, "tsbatch.telemetry.servertiming ", "'server_timing'"),
    ],
)
def test_an_unknown_key_gets_the_nearest_right_name(section, key, near):
    message = failure({"tsbatch": section})
    assert key in message
    assert f"did you mean {near}" in message


def test_an_unknown_key_that_is_near_nothing_gets_all_names():
    message = failure({"tsbatch": {"qqqq": 1}})
    assert "known keys: aux, batching, device" in message
    assert "schema" in message, "by the name it has in the file"


@pytest.mark.parametrize(
    "section, parts",
    [
        ({"threads": 0}, ["tsbatch.threads", "auto or a number from 1", "got 0"]),
        ({"threads": "many"}, ["tsbatch.threads", "'many'"]),
        ({"limits": {"items": "few"}}, ["tsbatch.limits.items", "integer", "'few'"]),
        ({"limits": {"items": 0}}, ["tsbatch.limits.items", "greater than or equal to 1"]),
        ({"limits": 5}, ["tsbatch.limits", "got 5"]),
        ({"batching": {"mode": "sorted"}}, ["tsbatch.batching.mode", "'bucketed'", "'sorted'"]),
        ({"batching": {"isolation_seconds": 0}}, ["tsbatch.batching.isolation_seconds", "greater than 0"]),
        ({"schema": 2}, ["tsbatch.schema", "1", "got 2"]),
        ({"nan": "zero"}, ["tsbatch.nan", "'null' or 'error'"]),
        ({"aux": ["labels.json"]}, ["tsbatch.aux", "valid dictionary"]),
        ({"warmup": "perhaps"}, ["tsbatch.warmup", "boolean"]),
    ],
)
def test_a_wrong_value_names_the_key_and_what_was_expected(section, parts):
    message = failure({"tsbatch": section})
    for part in parts:
        assert part in message


def test_all_that_is_wrong_is_said_at_once():
    message = failure({"tsbatch": {"thread": 1, "limits": {"items": 0}}})
    assert "tsbatch.thread " in message
    assert "tsbatch.limits.items" in message


@pytest.mark.parametrize("section", [5, "x", ["a"], True])
def test_a_section_that_is_no_mapping(section):
    assert f"tsbatch: expected keys and values, got {type(section).__name__}" in failure({"tsbatch": section})


@pytest.mark.parametrize("key", ["asyncCommunication", "continuousBatching", "sequenceBatching"])
def test_what_breaks_batching_is_refused_with_a_reason(key):
    message = failure({key: True})
    assert key in message
    assert "remove the line" in message
    assert load_settings({key: False}) == Settings()


class Options(Section):
    labels: int


def test_a_handlers_own_section():
    assert parse_section(Options, {"labels": 3}, "handler").labels == 3
    with pytest.raises(SettingsError, match=r"handler\.labels: Field required"):
        parse_section(Options, {}, "handler")


def test_parameters_of_a_request():
    assert parse_parameters(Wish, {"dimensions": 64}) == Wish(dimensions=64)
    assert parse_parameters(Wish, {}) == Wish()


@pytest.mark.parametrize(
    "given, part",
    [
        ({"dimension": 3}, "parameters.dimension does not exist; did you mean 'dimensions'?"),
        ({"xyzzy": 3}, "known keys: dimensions, mode"),
        ({"dimensions": "many"}, "parameters.dimensions"),
        ({"mode": "slow"}, "'fast' or 'exact'"),
        ({1: 2}, "parameters"),
    ],
)
def test_wrong_parameters_are_the_clients_fault(given, part):
    with pytest.raises(Unprocessable) as caught:
        parse_parameters(Wish, given)
    assert caught.value.status == 422
    assert part in caught.value.message


@pytest.mark.parametrize("given", [{"name": "half \ud800"}, {"names": ["whole", "half \udfff"]}, {"\ud800": 1}])
def test_half_a_surrogate_pair_is_refused_in_any_parameter(given):
    with pytest.raises(Unprocessable, match="surrogate"):
        parse_parameters(Anything, given)


class Anything(BaseModel):
    model_config = {"extra": "allow"}


def test_of_a_hundred_thousand_wrong_parameters_only_a_few_are_looked_at(monkeypatch):
    given = {f"dimensions{number}" + "s" * 1000: number for number in range(20_000)}
    near, looked = difflib.get_close_matches, []
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda *args, **options: looked.append(1) or near(*args, **options)
    )
    with pytest.raises(Unprocessable, match="and 19994 more") as caught:
        parse_parameters(Wish, given)
    assert len(looked) == 6
    assert len(caught.value.message) < 1500


def test_an_error_repeats_only_the_beginning_of_a_long_value():
    with pytest.raises(Unprocessable, match="valid integer") as caught:
        parse_parameters(Wish, {"dimensions": ["secret" * 1000] * 1000})
    assert len(caught.value.message) < 700


class Inner(Section):
    depth: int = 1


class Loose(BaseModel):
    inner: Inner = Inner()
    names: dict[str, Inner] = {}


def test_a_class_of_the_users_own_with_nested_parts():
    with pytest.raises(Unprocessable, match=r"parameters\.inner\.dept does not exist; did you mean 'depth'"):
        parse_parameters(Loose, {"inner": {"dept": 2}})
    with pytest.raises(Unprocessable, match=r"parameters\.names\.a\.dept does not exist"):
        parse_parameters(Loose, {"names": {"a": {"dept": 2}}})


@pytest.mark.parametrize("version", ["99.0.0", "0.99", "1.0"])
def test_an_archive_of_a_newer_tsbatch_is_refused(version):
    with pytest.raises(SettingsError, match=f"created with tsbatch {version}.*pip install 'tsbatch>={version}'"):
        load_settings({"tsbatch": {"version": version}})


@pytest.mark.parametrize("version", [tsbatch.__version__, "0.0.9", "0.1.99", "odd"])
def test_an_archive_of_this_or_an_older_tsbatch_loads(version):
    assert load_settings({"tsbatch": {"version": version}}).version == version


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_within_no_bounds(number):
    class Share(Section):
        threshold: float = Field(default=0.5, ge=0, le=1)
        seconds: float = 1.0

    for name in ("threshold", "seconds"):
        with pytest.raises(Unprocessable, match=rf"parameters\.{name}: Input should be a finite number"):
            parse_parameters(Share, {name: number})


@pytest.mark.parametrize(
    "section",
    [{"threads": True}, {"limits": {"items": True}}, {"trust_remote_code": "yes"}, {"limits": {"items": "3"}}],
)
def test_nothing_is_taken_for_what_it_is_not(section):
    with pytest.raises(SettingsError):
        load_settings({"tsbatch": section})
