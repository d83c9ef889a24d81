"""The verbs lint and effective at the command line."""

from __future__ import annotations

import json

import pytest

from tests.e2e.raw_server import archive
from tsbatch.cli.program import main
from tsbatch.lint.registry import all_rules


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.properties"
    path.write_text("load_models=m.mar\nmodel_store=store\ndefault_workers_per_model=3\nbatch_size=8\n")
    return path


def test_findings_are_exit_code_1(config, capsys):
    assert main(["lint", str(config)]) == 1
    out, err = capsys.readouterr()
    assert f"{config.as_posix()}:4: error: batch_size" in out
    assert err.endswith("1 error\n")


def test_notes_are_not(tmp_path, capsys):
    path = tmp_path / "model-config.yaml"
    path.write_text("batchSize: 8\n")
    assert main(["lint", str(path)]) == 0
    assert "1 note" in capsys.readouterr().err


def test_json(config, capsys):
    assert main(["lint", str(config), "--json", "--cores", "4"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == 1
    assert [(each["line"], each["rule"], each["fixable"]) for each in told["findings"]] == [
        (4, "config-model-key", False)
    ]


@pytest.mark.parametrize("form, start", [("sarif", '{"$schema"'), ("github", "::error ")])
def test_formats(config, capsys, form, start):
    assert main(["lint", str(config), "--format", form]) == 1
    assert capsys.readouterr().out.startswith(start)


def test_fix_writes_and_says_so(tmp_path, capsys):
    path = tmp_path / "config.properties"
    path.write_text("enable_model_api=yes # please\n")
    assert main(["lint", str(path), "--fix"]) == 0
    assert path.read_text() == "# please\nenable_model_api=true\n"
    assert "fixed" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["lint"], ["lint", "none"], ["lint", ".", "--ignore", "none"]])
def test_wrong_usage_is_one_line(words, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_rules_are_listed(capsys):
    assert main(["lint", "--rules", "--json"]) == 0
    assert [rule["id"] for rule in json.loads(capsys.readouterr().out)["rules"]] == list(all_rules())


class TestEffective:
    def test_what_is_loaded_at_the_start(self, config, tmp_path, capsys, monkeypatch):
        monkeypatch.chdir(tmp_path)
        archive(tmp_path / "store", "m", config="batchSize: 5\n")
        assert main(["effective", "config.properties", "--json"]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        assert model["loaded_at_start"] is True
        settings = model["settings"]
        assert settings["batchSize"] == {"value": 5, "layer": "model-config.yaml", "remark": ""}
        assert settings["minWorkers"]["value"] == 3
        assert settings["startupTimeout"]["layer"] == "model-config.yaml"
        assert "whatever the other layers say" in settings["startupTimeout"]["remark"]

    def test_a_table_for_people(self, config, tmp_path, capsys):
        path = archive(tmp_path, "m")
        assert main(["effective", str(config), f"other={path}", "--api", "batch_size=4"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("other 1.0 (registered by API)")
        assert "batchSize" in out
        assert "API" in out

    @pytest.mark.parametrize(
        "words, said",
        [
            (["--api", "batch_size"], "expected NAME=VALUE"),
            (["--api", "batchSize=8"], "POST /models accepts batch_size"),
            (["--model-store", "none"], "no such model store"),
        ],
    )
    def test_wrong_usage(self, config, tmp_path, capsys, words, said):
        path = archive(tmp_path, "m")
        models = [] if "--model-store" in words else [str(path)]
        assert main(["effective", str(config), *models, *words]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1

    @pytest.mark.parametrize(
        "text, said",
        [
            ("models={\n", "models: not JSON"),
            ("job_queue_size=1k\n", "NumberFormatException"),
            ('models={"m": {"1.0": {"batchSize": "many"}}}\n', "'many' is not a number"),
            ('models={"m": {"1.0": {"batchSize": null}}}\n', "cannot read None"),
            ("model_snapshot={}\n", "restores a snapshot"),
        ],
    )
    def test_what_torchserve_would_fail_on(self, tmp_path, capsys, text, said):
        config = tmp_path / "config.properties"
        config.write_text(text)
        assert main(["effective", str(config), str(archive(tmp_path, "m"))]) == 2
        assert said in capsys.readouterr().err

    def test_no_such_config(self, tmp_path, capsys):
        assert main(["effective", str(tmp_path / "none.properties")]) == 2
        assert "no such file" in capsys.readouterr().err

    def test_a_broken_archive(self, config, tmp_path, capsys):
        (tmp_path / "m.mar").write_bytes(b"no zip")
        assert main(["effective", str(config), str(tmp_path / "m.mar")]) == 2
        assert "is not a model archive" in capsys.readouterr().err
