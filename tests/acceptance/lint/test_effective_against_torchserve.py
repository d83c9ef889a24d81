"""``tsbatch effective`` says what a real TorchServe does, layer by layer."""

from __future__ import annotations

import json

import javaproperties
import pytest

from tests.acceptance.effective_cases import API as PARAMETERS
from tests.acceptance.effective_cases import (
    YAMLS,
    Combination,
    combinations,
    config_text,
    described,
    differences,
    expected,
    make_archives,
)
from tests.e2e.raw_server import archive, raw_server
from tsbatch.cli.program import main

COUNT = 45


def told_by_command(capsys, config, path, *words) -> dict:
    """What the command prints for one archive."""
    capsys.readouterr()
    assert main(["effective", str(config), str(path), "--json", *words]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    return {name: setting["value"] for name, setting in model["settings"].items()}


def test_line_2_registered_by_api(tmp_path, capsys, record_property):
    chosen = combinations(COUNT)
    store, config = tmp_path / "store", tmp_path / "config.properties"
    make_archives(store, chosen)
    config.write_text(config_text(chosen))
    problems = []
    with raw_server(store, config_text(chosen)) as server:
        assert not server.console, server.console
        for each in chosen:
            answer = server.register(each.name, **PARAMETERS[each.api])
            assert answer.status == 200, (each, answer.body)
            words = [f"--api={name}={value}" for name, value in PARAMETERS[each.api].items()]
            told = told_by_command(capsys, config, store / f"{each.name}.mar", *words)
            problems += [f"{each}: {line}" for line in differences(told, described(server, each.name))]
    assert problems == []
    record_property("line2_by_api", f"{len(chosen)} combinations, {len(told)} settings each, all agree")


WORKERS = {
    "pair": "minWorkers: 1\nmaxWorkers: 2\nbatchSize: 2\n",
    "min_only": "minWorkers: 2\nbatchSize: 2\n",
    "above": "minWorkers: 3\nmaxWorkers: 2\nresponseTimeout: 9\n",
    "zero": "minWorkers: 0\nmaxWorkers: 1\n",
    "none": None,
}


@pytest.mark.parametrize("properties", ["default_workers_per_model=1", "default_workers_per_model=0"])
def test_line_2_loaded_at_the_start(tmp_path, capsys, record_property, properties):
    store, config = tmp_path / "store", tmp_path / "config.properties"
    models = {"m_none_json": {"1.0": {"minWorkers": 2, "maxWorkers": 3, "batchSize": 4, "responseTimeout": 66}}}
    names = [f"m_{name}" for name in WORKERS] + ["m_none_json"]
    for name, yaml in {**WORKERS, "none_json": None}.items():
        archive(store, f"m_{name}", config=yaml)
    if properties.endswith("0"):
        names = ["m_pair", "m_min_only", "m_none_json"]  # as many workers as cores: few models are enough
    load = f"load_models={','.join(f'{name}.mar' for name in names)}\n"
    config.write_text(f"{properties}\n{load}models={json.dumps(models)}\ndefault_startup_timeout=45\n")
    problems = []
    with raw_server(store, config.read_text()) as server:
        assert not server.console, server.console
        for name in names:
            told = told_by_command(capsys, config, store / f"{name}.mar")
            problems += [f"{name}: {line}" for line in differences(told, described(server, name))]
    assert problems == []
    record_property(f"line2_at_start_{properties[-1]}", f"{len(names)} models agree")


def test_line_2_workers_by_api(tmp_path, capsys, record_property):
    """Where ``initial_workers``, the YAML and the default meet."""
    store, config = tmp_path / "store", tmp_path / "config.properties"
    config.write_text("default_workers_per_model=1\nmodels={'m_none_': {'1.0': {minWorkers: 2, maxWorkers: 3}}}\n")
    asked = [
        ("pair", ""),
        ("pair", "2"),
        ("min_only", ""),
        ("min_only", "0"),
        ("none", ""),
        ("none", "2"),
        ("zero", "0"),
    ]
    problems = []
    with raw_server(store, config.read_text()) as server:
        assert not server.console, server.console
        for yaml, number in asked:
            name = f"m_{yaml}_{number}"
            archive(store, name, config=WORKERS[yaml])
            api = {"initial_workers": number} if number else {}
            assert server.register(name, **api).status == 200
            words = [f"--api={key}={value}" for key, value in api.items()]
            told = told_by_command(capsys, config, store / f"{name}.mar", *words)
            problems += [f"{name}: {line}" for line in differences(told, described(server, name))]
    assert problems == []
    record_property("line2_workers_by_api", f"{len(asked)} combinations agree")


def test_the_library_says_what_the_command_says(tmp_path, capsys):
    each = Combination("full", "none", "none")
    config = tmp_path / "config.properties"
    config.write_text("job_queue_size=5\n")
    path = archive(tmp_path, each.name, config=YAMLS["full"])
    values = javaproperties.loads(config.read_bytes())
    yaml = {"batchSize": 3, "maxBatchDelay": 30, "responseTimeout": 31, "startupTimeout": 32, "jobQueueSize": 33}
    assert told_by_command(capsys, config, path) == expected(each, values, yaml, {})
