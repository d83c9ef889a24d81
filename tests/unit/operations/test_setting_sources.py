"""Who set each setting of a running model."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tsbatch.operations.setting_sources import BY_API, origins


@pytest.fixture
def instance(tmp_path):
    """A server whose model's files lie in its store as a folder."""
    store, work_dir = tmp_path / "store", tmp_path / "work"
    (store / "m" / "MAR-INF").mkdir(parents=True)
    work_dir.mkdir()
    manifest = {"model": {"modelName": "m", "modelVersion": "2.0", "configFile": "model-config.yaml"}}
    (store / "m" / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (store / "m" / "model-config.yaml").write_text("batchSize: 8\nmaxBatchDelay: 10\n")
    (work_dir / "config.properties").write_text("job_queue_size=7\ndefault_startup_timeout=50\n")
    return SimpleNamespace(model_store=store, work_dir=work_dir)


DESCRIBED = {
    "modelName": "m",
    "modelVersion": "2.0",
    "modelUrl": "m",
    "loadedAtStartup": False,
    "batchSize": 8,
    "maxBatchDelay": 10,
    "minWorkers": 3,
    "startupTimeout": 120,
}


def test_each_setting_has_its_layer(instance):
    found = origins(instance, DESCRIBED)
    assert (found["batchSize"], found["maxBatchDelay"]) == ("model-config.yaml", "model-config.yaml")
    assert found["minWorkers"] == BY_API, "no file says 3"


def test_what_files_do_not_explain_came_by_api(instance):
    assert origins(instance, {**DESCRIBED, "batchSize": 4})["batchSize"] == BY_API


@pytest.mark.parametrize("url", ["file:///elsewhere/m", "https://host/a/m?token=1", "S3://bucket/m"])
def test_what_came_by_address_lies_in_the_store(instance, url):
    assert origins(instance, {**DESCRIBED, "modelUrl": url})["batchSize"] == "model-config.yaml"


def test_without_an_archive_nothing_is_claimed(instance):
    assert origins(instance, {**DESCRIBED, "modelUrl": "https://host/other.mar"}) == {}
    (instance.model_store / "m" / "MAR-INF" / "MANIFEST.json").unlink()
    assert origins(instance, DESCRIBED) == {}


def test_a_file_with_which_the_server_would_not_have_started_claims_nothing(instance):
    (instance.work_dir / "config.properties").write_text("models={broken\n")
    assert origins(instance, DESCRIBED) == {}
