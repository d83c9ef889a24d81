"""What goes along in a bundle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tsbatch import _bundled
from tsbatch.archive.planned_archive import Archive
from tsbatch.emulation.worker_environment import WorkerEnvironment
from tsbatch.errors import LoadError, UsageError
from tsbatch.packaging import bundle as module
from tsbatch.packaging.builder import plan
from tsbatch.packaging.bundle import FROM_SERVER, NEEDED, with_bundle

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]


def archive(tmp_path, **section):
    handler = tmp_path / "my_handler.py"
    handler.write_text("class MyHandler:\n    pass\n")
    planned = plan(name="m", handler=handler)
    config = {**planned.config, "tsbatch": {**planned.config["tsbatch"], **section}}
    return Archive(name="m", version="1.0", files=planned.files, config=config)


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    return with_bundle(archive(tmp_path_factory.mktemp("bundle")))


def test_what_is_needed_is_what_the_project_says():
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [Requirement(text) for text in project["dependencies"]]
    here = {need.name for need in needs if need.marker is None or need.marker.evaluate()}
    assert set(NEEDED) == here - FROM_SERVER | {"safetensors"}


def test_only_what_a_worker_needs_is_in_it(bundled):
    names = set(bundled.files)
    assert {"tsbatch/handler.py", "tsbatch/models/loading.py", "tsbatch/metrics.yaml"} < names
    assert {"tsbatch/tasks/tensor.py", "tsbatch/tasks/text/handler.py", "tsbatch/tasks/text/__init__.py"} < names
    assert {"pydantic/__init__.py", "yaml/__init__.py", "orjson/__init__.py", "numpy/__init__.py"} < names
    assert not [name for name in names if name.startswith(("torch/", "ts/", "transformers/"))]
    packages = {name.split("/")[1] for name in names if name.startswith("tsbatch/") and name.count("/") > 1}
    assert packages == {"batching", "models", "protocol", "tasks", "worker"}
    assert not [name for name in names if name.endswith(".pyc") or ".." in name or "__pycache__" in name]
    assert not [name for name in names if name.endswith(("/RECORD", "/INSTALLER", "/direct_url.json"))]
    assert [name for name in names if name.startswith("orjson-") and name.endswith("METADATA")], "licences go along"


def test_it_says_what_it_is(bundled):
    about = bundled.about["bundle"]
    assert about["made_for"] == _bundled.python_and_platform()
    assert {"tsbatch", "orjson", "pydantic", "pydantic-core", "numpy"} <= about["packages"].keys()
    assert any("bundled for" in note and "orjson" in note for note in bundled.notes)


def test_transformers_brings_its_own(tmp_path):
    names = set(with_bundle(archive(tmp_path, task="text-embedding")).files)
    assert not [name for name in names if name.startswith(("numpy", "yaml/", "safetensors/"))]
    assert "pydantic/__init__.py" in names, "not every transformers needs it"


def test_an_engine_s_packages_go_along(tmp_path):
    assert "onnxruntime" in with_bundle(archive(tmp_path, engine="onnxruntime")).about["bundle"]["packages"]


def test_a_collision_is_an_error(tmp_path):
    own = archive(tmp_path)
    own = Archive(name="m", version="1", files={**own.files, "yaml/__init__.py": b""}, config=own.config)
    with pytest.raises(UsageError, match=r"'yaml/__init__\.py' is in the archive already"):
        with_bundle(own)


def test_a_package_that_is_not_here(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NEEDED", ("no-such-package-here",))
    with pytest.raises(UsageError, match="no-such-package-here is not installed here"):
        with_bundle(archive(tmp_path))


def test_this_process_keeps_its_own(tmp_path):
    """An archive with a bundle, in a process that has tsbatch and numpy already."""
    (tmp_path / "tsbatch").mkdir()
    (tmp_path / "numpy").mkdir()
    for name in ("tsbatch/__init__.py", "numpy/__init__.py", "my_handler.py"):
        (tmp_path / name).write_text("raise ImportError")
    (tmp_path / _bundled.NAME).write_bytes(_bundled.text(["numpy", "tsbatch"]))
    before = sys.modules["numpy"]
    with WorkerEnvironment(tmp_path, paths=[tmp_path]).entered():
        assert sys.modules["numpy"] is before
        assert "tsbatch" in sys.modules


def test_another_python_is_reported(monkeypatch):
    class Made:
        MADE_FOR = "cpython-2.7 vax"

    monkeypatch.setitem(sys.modules, "tsbatch._bundled_for", Made)
    with pytest.raises(LoadError, match=r"for cpython-2\.7 vax, but this worker is"):
        _bundled.check()
    Made.MADE_FOR = _bundled.python_and_platform()
    _bundled.check()
