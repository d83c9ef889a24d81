"""Without Ray everything else works, and what needs it says in one line what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.acceptance.bare_python import has, python_with

ROOT = Path(__file__).resolve().parents[3]
HANDLER = """
from tsbatch import BatchHandler


class Doubles(BatchHandler):
    def load_model(self):
        return lambda numbers: 2 * numbers
"""
ONE_LINE = 'tsbatch: Ray Serve is not installed: pip install "tsbatch[ray]"\n'


def needed():
    """The packages of ``tsbatch[all]``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (everything,) = (Requirement(text) for text in extras["all"])
    assert "ray" not in everything.extras
    named = [*project["dependencies"], *(text for extra in everything.extras for text in extras[extra])]
    wanted = [Requirement(text) for text in named]
    return {one.name for one in wanted if one.marker is None or one.marker.evaluate()}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    python = python_with(tmp_path_factory.mktemp("bare") / "venv", *needed(), "requests")
    assert not has(python, "ray")
    return python


@pytest.fixture
def tsbatch(python, tmp_path):
    def tsbatch(*words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [str(python), "-m", "tsbatch", *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=120
        )

    return tsbatch


@pytest.mark.parametrize("words", [("deploy", "m.mar", "--local"), ("status", "--json"), ("undeploy", "m")])
def test_line_5_the_command_says_what_to_install(tsbatch, words):
    done = tsbatch("ray", *words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", ONE_LINE)


def test_line_5_so_does_the_module(python):
    code = "import tsbatch.ray; tsbatch.ray.deployment"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stderr.splitlines()[-1].endswith('not installed: pip install "tsbatch[ray]"')


def test_line_5_every_verb_is_there(tsbatch):
    for verb in ("--help", "ray --help", "package --help", "serve --help", "bench --help", "plan --help"):
        assert tsbatch(*verb.split()).returncode == 0, verb


def test_line_5_everything_else_works(tsbatch, tmp_path):
    (tmp_path / "doubles.py").write_text(HANDLER, encoding="utf-8")
    (tmp_path / "requests.jsonl").write_text("[1, 2]\n", encoding="utf-8")

    def run(*words):
        done = tsbatch(*words)
        assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout

    run("package", "--name", "m", "--handler", "doubles.py")
    for verb in ("verify", "inspect", "lint"):
        run(verb, "model_store/m.mar")
    run("plan", "--service", "5+2*n", "--p99", "100", "--rate", "50")
    told = run("run", "model_store/m.mar", "--data", "requests.jsonl", "--json")
    assert "[2,4]" in json.dumps(json.loads(told)).replace(" ", "")
    try:
        run("serve", "--models", "model_store/m.mar", "--detach")
        load = ("--concurrency", "2", "--duration", "3", "--output", "b.json")
        told = run("bench", "m", "--data", "requests.jsonl", *load, "--json")
        (step,) = json.loads(told)["summary"]
        assert step["failed"] == 0
        run("diagnose", "b.json")
    finally:
        tsbatch("stop", "--all")
