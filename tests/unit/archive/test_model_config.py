"""The complete model-config.yaml: defaults, precedence, and what is refused."""

from __future__ import annotations

import pytest
import yaml

from tsbatch._version import __version__
from tsbatch.archive.model_config import ModelConfig, complete, dump, overruled, read
from tsbatch.errors import UsageError

NUMBERS = ("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout")


def test_every_number_is_written_even_when_nothing_was_asked():
    config = yaml.safe_load(dump(complete(ModelConfig(), task="text-embedding")))
    assert list(config) == [*NUMBERS, "tsbatch"]
    assert all(type(config[key]) is int and config[key] >= 1 for key in NUMBERS)
    assert config["tsbatch"] == {"schema": 1, "version": __version__, "task": "text-embedding", "threads": "auto"}


def test_workers_are_min_and_max():
    config = complete(ModelConfig(workers=3))
    assert (config["minWorkers"], config["maxWorkers"]) == (3, 3)


def test_what_was_asked_wins_over_the_folder_and_the_folder_over_the_defaults():
    base = {"batchSize": 4, "maxBatchDelay": 70, "minWorkers": 2}
    config = complete(ModelConfig(batch_size=16, base=base))
    assert [config[key] for key in NUMBERS] == [2, 2, 16, 70, 120, 120]


def test_other_keys_and_the_handler_section_stay():
    base = {"deviceType": "gpu", "handler": {"labels": ["a"]}, "tsbatch": {"limits": {"items": 3}, "threads": 2}}
    config = complete(ModelConfig(base=base), task="text-embedding")
    assert config["deviceType"] == "gpu"
    assert config["handler"] == {"labels": ["a"]}
    assert config["tsbatch"]["limits"] == {"items": 3}
    assert config["tsbatch"]["threads"] == 2
    assert complete(ModelConfig(threads=5, base=base))["tsbatch"]["threads"] == 5


def test_the_base_is_not_changed():
    base = {"minWorkers": 2, "tsbatch": {"aux": {"a": "a.json"}}}
    complete(ModelConfig(base=base), aux={"b": "b.json"})
    assert base == {"minWorkers": 2, "tsbatch": {"aux": {"a": "a.json"}}}


def test_aux_of_folder_and_options_are_joined():
    base = {"tsbatch": {"aux": {"a": "a.json"}}}
    assert complete(ModelConfig(base=base), aux={"b": "b.json"})["tsbatch"]["aux"] == {"a": "a.json", "b": "b.json"}
    with pytest.raises(UsageError, match=r"--aux a: .*already"):
        complete(ModelConfig(base=base), aux={"a": "other.json"})


def test_startup_timeout_grows_with_the_weights():
    assert complete(ModelConfig(), weight_bytes=90_000_000)["startupTimeout"] == 120
    assert complete(ModelConfig(), weight_bytes=13_500_000_000)["startupTimeout"] == 120 + 13 * 30
    assert complete(ModelConfig(startup_timeout=60), weight_bytes=13_500_000_000)["startupTimeout"] == 60


def test_overruled_names_both_values():
    config = ModelConfig(batch_size=8, workers=1, base={"batchSize": 4, "minWorkers": 1})
    assert overruled(config) == ["model-config.yaml of the model folder says batchSize: 4; the option's 8 is used"]


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 0}, {"workers": -1}, {"response_timeout": 2**31}, {"startup_timeout": True}, {"batch_size": "8"}],
)
def test_numbers_out_of_range_are_refused_with_the_option(options):
    with pytest.raises(UsageError, match=f"^--{next(iter(options)).replace('_', '-')}: "):
        ModelConfig(**options)


@pytest.mark.parametrize("source", ["option", "file"])
def test_a_delay_of_zero_is_refused_with_the_reason(source):
    with pytest.raises(UsageError, match="100 ms"):
        complete(ModelConfig(max_batch_delay=0) if source == "option" else ModelConfig(base={"maxBatchDelay": 0}))


@pytest.mark.parametrize(
    "base, message",
    [
        ({"batchSize": "8"}, "model-config.yaml: batchSize: expected a whole number, got '8'"),
        ({"responseTimeout": 1.5}, "responseTimeout: expected a whole number"),
        ({"minWorkers": None}, "minWorkers: expected a whole number"),
        ({"minWorkers": 4, "maxWorkers": 2}, "minWorkers is above maxWorkers"),
        ({"tsbatch": {"limitz": {}}}, "did you mean 'limits'"),
        ({"tsbatch": ["a"]}, "tsbatch: expected keys and values"),
        ({"tsbatch": {"aux": "x"}}, "tsbatch.aux: expected 'name: file' lines"),
        ({"tsbatch": {"threads": 0}}, "threads"),
        ({"asyncCommunication": True}, "asyncCommunication"),
    ],
)
def test_a_bad_file_is_refused(base, message):
    with pytest.raises(UsageError, match=message):
        complete(ModelConfig(base=base), task="text-embedding")


def test_an_own_handler_may_use_what_a_ready_made_one_cannot():
    assert complete(ModelConfig(base={"asyncCommunication": True}))["asyncCommunication"] is True


def test_the_file_is_ascii_and_keeps_its_text():
    text = dump({"handler": {"prefix": "übung ß 検索"}})
    assert text.isascii()
    assert yaml.safe_load(text) == {"handler": {"prefix": "übung ß 検索"}}


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "expected lines of 'key: value'"),
        (b"- 1\n", "got list"),
        (b"1: 2\n", "key: value"),
        (b"a: [1\n", "not YAML"),
        (b"\xff\xfe\xfa", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_read_refuses_what_holds_no_keys(tmp_path, content, message):
    path = tmp_path / "model-config.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read(path)


def test_read_gives_the_mapping(tmp_path):
    (tmp_path / "c.yaml").write_text("batchSize: 4\n", encoding="utf-8")
    assert read(tmp_path / "c.yaml") == {"batchSize": 4}
