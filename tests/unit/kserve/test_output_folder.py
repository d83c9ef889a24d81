"""What is written: settings that TorchServe knows, an image that can be built of what is there, the archive itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.metadata import version

import javaproperties
import pytest
import yaml

from tests.kserve import check_of, foreign_archive, own_archive
from tests.unit.archive import archives
from tsbatch.configuration.known_settings import PROPERTIES
from tsbatch.errors import UsageError
from tsbatch.kserve.archive_facts import facts_of
from tsbatch.kserve.image import dockerfile, requirements
from tsbatch.kserve.output_folder import as_yaml, write
from tsbatch.kserve.server_config import config_properties
from tsbatch.lint.run import lint

STORED = {"spec": {"predictor": {"model": {}}}}
IN_IMAGE = {"spec": {"predictor": {"containers": []}}}


@pytest.fixture(scope="module")
def mar(tmp_path_factory):
    return own_archive(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def facts(mar):
    return facts_of(mar, check_of(mar, "m"))


def test_everything_lies_where_kserve_and_docker_look(facts, mar, tmp_path):
    files = write(tmp_path / "out", facts, STORED)
    store = tmp_path / "out" / "storage"
    assert (store / "model-store" / "m.mar").read_bytes() == mar.read_bytes()
    assert {"config/config.properties", "config/metrics.yaml", "model-store/m.mar"} == {
        name.removeprefix("storage/") for name in files if name.startswith("storage/")
    }
    assert {"inference-service.yaml", "Dockerfile", "requirements.txt", "worker/tsbatch/handler.py"} <= set(files)
    assert not [name for name in files if name.startswith(("worker/tsbatch/kserve", "worker/tsbatch/check"))]


@pytest.mark.parametrize("manifest", [STORED, IN_IMAGE])
def test_what_the_dockerfile_copies_is_there(facts, tmp_path, manifest):
    write(tmp_path / "out", facts, manifest)
    text = (tmp_path / "out" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (\S+) (\S+)$", text, re.MULTILINE)
    assert all((tmp_path / "out" / source).exists() for source, _ in copied)
    assert (("storage", "/mnt/models") in copied) == (manifest is IN_IMAGE)
    assert ("worker", "/opt/tsbatch") in copied
    assert "ENV PYTHONPATH=/opt/tsbatch" in text


def test_the_image_has_what_the_worker_imports(facts):
    lines = dict(line.split("==") for line in requirements(facts).splitlines() if "==" in line)
    assert {"torch", "torchserve", "requests", "numpy", "orjson", "pydantic", "PyYAML", "safetensors"} <= set(lines)
    # What the check saw wins, whatever is here.
    assert lines.pop("somebodys_package") == "1.2"
    assert lines.pop("torch") == "2.13.0"
    assert all(version(name).partition("+")[0] == number for name, number in lines.items())


def test_a_package_is_named_once(facts):
    found = requirements(replace(facts, imports={"Torch": "9.9", "numpy": "9.8"}))
    assert [line for line in found.splitlines() if line.lower().startswith(("torch==", "numpy=="))] == [
        "numpy==9.8",
        "Torch==9.9",
    ]


def test_a_task_brings_its_own(facts):
    assert "pillow==" in requirements(replace(facts, section={"task": "object-detection"})).lower()


def test_an_archive_that_brings_tsbatch_needs_none_in_the_image(tmp_path):
    mar = own_archive(tmp_path, "bundled")
    files = archives.contents(mar)
    about = {**json.loads(files["MAR-INF/tsbatch.json"]), "bundle": {"made_for": "cpython-3.12 linux x86_64"}}
    archives.rewrite(mar, {**files, "MAR-INF/tsbatch.json": json.dumps(about).encode()})
    found = facts_of(mar, check_of(mar, "bundled"))
    assert found.bundled
    files = write(tmp_path / "out", found, STORED)
    assert not [name for name in files if name.startswith("worker")]
    assert "orjson" not in requirements(found)
    assert "/opt/tsbatch" not in dockerfile(found, with_storage=False)
    assert "FROM python:3.12-slim" in dockerfile(found, with_storage=False)


def test_a_handler_that_is_not_ours_needs_no_tsbatch(tmp_path):
    mar = foreign_archive(tmp_path)
    found = facts_of(mar, check_of(mar, "foreign", ours=False))
    assert "orjson" not in requirements(found)
    assert "COPY worker" not in dockerfile(found, with_storage=True)


def test_torchserve_knows_every_setting(facts):
    values = javaproperties.loads(config_properties(facts))
    assert values.keys() <= PROPERTIES.keys()
    assert values["management_address"] == "http://127.0.0.1:8081"
    assert values["inference_address"] == "http://0.0.0.0:8080"
    assert values["metrics_mode"] == "prometheus"
    assert values["load_models"] == "m.mar"
    assert "install_py_dep_per_model" not in values
    assert "enable_envvars_config" not in values
    more = javaproperties.loads(config_properties(replace(facts, requirements=True)))
    assert more["install_py_dep_per_model"] == "true"


def test_lint_has_nothing_against_it(facts, tmp_path):
    storage = tmp_path / "out" / "storage"
    write(tmp_path / "out", facts, STORED)
    path = storage / "config" / "config.properties"
    path.write_text(path.read_text().replace("/mnt/models", str(storage)))
    assert [finding.as_json() for finding in lint([path])] == []


def test_the_yaml_says_what_the_mapping_does():
    mapping = {"on": "off", "text": "a\nb\n", "number": "8082", "list": [["a"], ["a"]]}
    text = as_yaml(mapping)
    assert yaml.safe_load(text) == mapping
    assert "text: |" in text


def test_what_is_there_is_kept(facts, tmp_path):
    write(tmp_path / "out", facts, STORED)
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(UsageError, match="--force"):
        write(tmp_path / "out", facts, STORED)
    write(tmp_path / "out", facts, STORED, force=True)
    assert not (tmp_path / "out" / "mine").exists()
