"""The layers one by one; tests/acceptance compares them with a real TorchServe."""

from __future__ import annotations

import pytest

from tsbatch.configuration.effective_settings import Deployment, effective, read_yaml_values
from tsbatch.errors import UsageError


def settings(config=None, *, properties=None, api=None, cores=4, gpus=0):
    model = Deployment(
        name="m", version="1.0", config=config, properties=properties or {}, api=api, cores=cores, gpus=gpus
    )
    return {setting.name: (setting.value, setting.layer) for setting in effective(model)}


MODELS = {"models": '{"m": {"1.0": {"batchSize": 5, "responseTimeout": 50, "minWorkers": 2, "maxWorkers": 3}}}'}


class TestBatchSize:
    @pytest.mark.parametrize(
        "config, properties, api, expected",
        [
            ({"batchSize": 4}, MODELS, {"batch_size": "7"}, (7, "API")),
            ({"batchSize": 4}, MODELS, {}, (4, "model-config.yaml")),
            ({"maxBatchDelay": 4}, MODELS, {}, (5, "models={}")),
            (None, {}, {}, (1, "default")),
            (None, {}, {"batch_size": "-1"}, (1, "default")),
            (None, {}, {"batch_size": "8.0"}, (1, "default")),
            ({"batchSize": "8"}, MODELS, None, (5, "models={}")),
            ({"batchSize": 0}, MODELS, None, (1, "model-config.yaml")),
        ],
    )
    def test_layers(self, config, properties, api, expected):
        assert settings(config, properties=properties, api=api)["batchSize"] == expected

    def test_the_name_and_the_version_must_match(self):
        other = {"models": '{"M": {"1.0": {"batchSize": 5}}, "m": {"1": {"batchSize": 6}}}'}
        assert settings(properties=other)["batchSize"] == (1, "default")


class TestTimeouts:
    @pytest.mark.parametrize(
        "config, properties, api, expected",
        [
            ({"responseTimeout": 9}, MODELS, {"response_timeout": "7"}, (9, "model-config.yaml")),
            ({"batchSize": 1}, MODELS, {"response_timeout": "7"}, (120, "model-config.yaml")),
            (None, MODELS, {"response_timeout": "7"}, (50, "models={}")),
            (None, {"default_response_timeout": "77"}, {"response_timeout": "7"}, (7, "API")),
            (None, {"default_response_timeout": "77"}, {}, (77, "config.properties")),
            (None, {}, None, (120, "default")),
        ],
    )
    def test_layers(self, config, properties, api, expected):
        assert settings(config, properties=properties, api=api)["responseTimeout"] == expected


class TestWorkers:
    PAIR = {"minWorkers": 2, "maxWorkers": 4}

    @pytest.mark.parametrize(
        "config, properties, api, expected",
        [
            (PAIR, MODELS, None, [(2, "model-config.yaml"), (4, "model-config.yaml")]),
            (PAIR, {}, {"initial_workers": "9"}, [(2, "model-config.yaml"), (4, "model-config.yaml")]),
            ({"minWorkers": 2}, MODELS, None, [(2, "models={}"), (3, "models={}")]),
            ({"minWorkers": 2}, {}, {}, [(0, "default"), (0, "default")]),
            (None, MODELS, {"initial_workers": "1"}, [(1, "API"), (1, "API")]),
            (None, {"default_workers_per_model": "3"}, {}, [(3, "config.properties"), (3, "config.properties")]),
            (None, {"debug": "true"}, None, [(1, "config.properties"), (1, "config.properties")]),
            (None, {"default_workers_per_model": "0"}, None, [(4, "default"), (4, "default")]),
        ],
    )
    def test_layers(self, config, properties, api, expected):
        found = settings(config, properties=properties, api=api)
        assert [found["minWorkers"], found["maxWorkers"]] == expected

    def test_gpus_before_cores(self):
        assert settings(gpus=3)["minWorkers"] == (3, "default")
        assert settings(gpus=3, properties={"number_of_gpu": "1"})["minWorkers"] == (1, "default")


def test_the_queue():
    assert settings({"jobQueueSize": 7}, properties={"job_queue_size": "9"})["jobQueueSize"] == (7, "model-config.yaml")
    assert settings({"jobQueueSize": 0}, properties={"job_queue_size": "9"})["jobQueueSize"] == (9, "config.properties")
    assert settings()["jobQueueSize"] == (100, "default")


def test_what_counts_of_a_yaml():
    config = {
        "batchSize": True,
        "maxWorkers": -1,
        "useVenv": "yes",
        "startupTimeout": 0,
        "jobQueueSize": 2**31,
        "own": 1,
    }
    assert read_yaml_values(config) == {}
    assert read_yaml_values({"minWorkers": 0, "clientTimeoutInMills": -4}) == {
        "minWorkers": 1,
        "clientTimeoutInMills": 0,
    }


@pytest.mark.parametrize("text", ["{", '{"m": {"1.0": {"batchSize": true}}}', '{"m": {"1.0": {"batchSize": "x"}}}'])
def test_what_torchserve_cannot_load(text):
    with pytest.raises(UsageError, match="models: "):
        settings(properties={"models": text})
