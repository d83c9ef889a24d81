"""Where settings are measured: a private copy, alike to what it is a copy of."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import yaml

from tests.unit.tuning.made_up import observation
from tsbatch.tuning import private_server
from tsbatch.tuning.private_server import config_of, settings_of
from tsbatch.tuning.search_space import ModelSettings


class Bench:
    def run(self, instance, model, settings):
        return observation(settings)


def archive(folder, config=None):
    """A folder used as an archive."""
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_text('{"model": {}}')
    if config is not None:
        (folder / "model-config.yaml").write_text(config)
    return folder


def test_settings_as_torchserve_reads_them():
    assert settings_of({}) == ModelSettings(1, 1, 100)
    assert settings_of({"minWorkers": 3, "maxWorkers": 3, "batchSize": "8", "maxBatchDelay": 0}) == ModelSettings(
        3, 1, 100
    )
    assert settings_of({"minWorkers": 3, "batchSize": 4}) == ModelSettings(1, 4, 100), "minWorkers alone does not count"
    assert settings_of({"minWorkers": 3, "maxWorkers": 2, "maxBatchDelay": 7}) == ModelSettings(1, 1, 7)
    assert config_of(ModelSettings(3, 8, 0)) == {"minWorkers": 3, "maxWorkers": 3, "batchSize": 8, "maxBatchDelay": 1}


@pytest.mark.parametrize("delay", [0, -10000])
def test_what_a_server_tells_holds(delay):
    described = {"modelVersion": "1.0", "minWorkers": 3, "maxWorkers": 1, "batchSize": 4, "maxBatchDelay": delay}
    assert settings_of(described) == ModelSettings(3, 4, delay)


@pytest.mark.parametrize("free, gone", [(3, []), (1, ["tune-1"])])
def test_the_incumbent_makes_room_when_both_do_not_fit(tmp_path, monkeypatch, free, gone):
    dropped = []
    management = SimpleNamespace(describe=lambda name: {"workers": [1]}, unregister=dropped.append)
    made = SimpleNamespace(work_dir=tmp_path)
    private = SimpleNamespace(instance=made, running=lambda: True, management=lambda: nullcontext(management))
    monkeypatch.setattr(private_server, "lack_of_room", lambda model, workers: "no room" if workers > free else None)
    monkeypatch.setattr(private_server, "write_variant", lambda *_, **__: None)
    monkeypatch.setattr(private_server.registration, "register", lambda *_, **__: None)
    copy = private_server.PrivateCopy(private, tmp_path, Bench(), print, {})
    copy.measure(ModelSettings(1, 8, 50))
    copy.measure(ModelSettings(3, 8, 50))
    assert dropped == gone


def test_the_files_of_an_archive_or_of_a_folder(tmp_path):
    with private_server.of_archive(tmp_path)(tmp_path / "scratch") as folder:
        assert folder == tmp_path


def test_a_copy_of_a_running_model_needs_nothing_of_it_any_more(tmp_path):
    store = tmp_path / "store"
    running = SimpleNamespace(model_store=store)
    described = {"workers": [], "modelUrl": archive(store / "embed", "batchSize: 4\n").name, "modelVersion": "1.0"}
    with private_server.running_files(running, described, tmp_path / "source") as folder:
        shutil.rmtree(store)
        assert folder == tmp_path / "source"
        assert private_server.config_in(folder) == {"batchSize": 4}


def test_a_copy_answers_as_the_server_that_it_is_copied_from(tmp_path):
    told = "job_queue_size=1000\nmax_request_size=70000000\ninference_address=http://127.0.0.1:1\nload_models=all\n"
    (tmp_path / "config.properties").write_text(told)
    found = private_server.properties_of(SimpleNamespace(work_dir=tmp_path))
    assert found == {"job_queue_size": "1000", "max_request_size": "70000000"}


@pytest.mark.parametrize("config", [None, "responseTimeout: 5\nbatchSize: 2\n"])
def test_the_time_outs_that_hold_are_those_of_the_copy(tmp_path, config):
    """In a YAML that does not say them they would be 120 s, whatever holds for the model."""
    described = {"responseTimeout": 600, "startupTimeout": 300, "batchSize": 1}
    server = SimpleNamespace(instance=SimpleNamespace(work_dir=tmp_path / "work"))
    overrides = private_server.timeouts_of(described)
    copy = private_server.PrivateCopy(server, archive(tmp_path / "embed", config), Bench(), print, overrides)
    folder = copy._folder("tune-1", ModelSettings(1, 8, 50))
    written = yaml.safe_load((folder / "model-config.yaml").read_text())
    assert (written["responseTimeout"], written["startupTimeout"], written["batchSize"]) == (600, 300, 8)
    assert (copy.config["responseTimeout"], copy.config["startupTimeout"]) == (600, 300)
