"""The public names: a declared list, sorted, all there, and cheap to have around."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import tsbatch

ROOT = Path(__file__).resolve().parents[2]
CORE_MAY_IMPORT = {
    "numpy",
    "onnxruntime",
    "openvino",
    "orjson",
    "pydantic",
    "safetensors",
    "tomli",
    "torch",
    "transformers",
    "ts",
    "tsbatch",
    "yaml",
}
OF_EXTRAS = {
    "shared/attributions.py": {"captum"},
    "images/image_files.py": {"PIL"},
    "audio/sound_files.py": {"soundfile", "soxr"},
    "text/sentence_library.py": {"sentence_transformers"},
    "text/token_features.py": {"tokenizers"},  # which transformers needs itself
}
"""Files that need an extra, and say so when it is not there."""
CORE_PACKAGES = ("protocol", "batching", "models", "worker", "tasks")
FORWARDING = ("__main__.py", "pytest_plugin.py", "runner.py")
"""Modules of the root that no worker imports."""


def core_files():
    package = ROOT / "src" / "tsbatch"
    root = [path for path in sorted(package.glob("*.py")) if path.name not in FORWARDING]
    return root + [path for name in CORE_PACKAGES for path in sorted((package / name).rglob("*.py"))]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_names_are_sorted_and_unique():
    assert list(tsbatch.__all__) == sorted(set(tsbatch.__all__))


@pytest.mark.parametrize("name", tsbatch.__all__)
def test_every_name_is_there_and_documented(name):
    value = getattr(tsbatch, name)
    assert name.startswith("__") or (value.__doc__ or "").strip(), f"{name} has no docstring"


def test_dir_lists_them():
    assert set(tsbatch.__all__) <= set(dir(tsbatch))


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="BatchHandlr"):
        tsbatch.BatchHandlr  # noqa: B018


def test_the_base_class_is_among_them():
    assert {"BatchHandler", "__version__"} <= set(tsbatch.__all__)


def test_the_version_is_the_distributions():
    assert metadata.version("tsbatch") == tsbatch.__version__


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, tsbatch; print([m for m in ('torch', 'numpy', 'transformers', 'typer', 'ts') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_is_typed():
    assert (ROOT / "src" / "tsbatch" / "py.typed").is_file()


@pytest.mark.parametrize("path", core_files(), ids=lambda path: path.name)
def test_the_core_imports_only_what_a_worker_needs(path):
    tops = {name.partition(".")[0] for name in imported(path)} - set(sys.stdlib_module_names)
    assert tops <= CORE_MAY_IMPORT | OF_EXTRAS.get("/".join(path.parts[-2:]), set())


def test_nothing_but_its_own_packages_imports_ray():
    package = ROOT / "src" / "tsbatch"
    others = [path for path in package.rglob("*.py") if "ray" not in path.relative_to(package).parts]
    assert len(others) > 100
    users = {path.name for path in others for name in imported(path) if name.split(".")[0] == "ray"}
    assert users == set()
    users = {path.name for path in others for name in imported(path) if name.startswith("tsbatch.ray")}
    assert users == {"ray_commands.py"}
