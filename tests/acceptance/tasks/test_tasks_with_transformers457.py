"""The tests of the ready-made tasks pass with transformers 4.57 as well."""

from __future__ import annotations

import re
import subprocess
from importlib.metadata import version

from tests.acceptance.older_transformers import ROOT

SUITE = (
    "tests/unit/tasks",
    "tests/unit/models",
    "tests/integration/tasks",
    "tests/integration/test_engines.py",
    "tests/integration/test_text_embedding.py",
)


PACKING = "tests/integration/test_packing.py"
"""The older one's encoders do not follow the attention interface: there it must be seen that nothing is proven."""


def test_this_environment_has_the_newer_one():
    assert version("transformers").startswith("5.")


def test_the_tasks_in_the_older_one(transformers_457, record_property):
    ask = "import transformers; print(transformers.__version__)"
    found = subprocess.run([transformers_457, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    assert found.startswith("4.57.")
    command = [transformers_457, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *SUITE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    print(done.stdout[-4000:])
    assert done.returncode == 0, done.stdout[-4000:]
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|skipped)", done.stdout.splitlines()[-1])}
    record_property("transformers", found)
    record_property("passed", counts["passed"])
    record_property("skipped", counts.get("skipped", 0))
    assert counts["passed"] > 500


def test_nothing_is_packed_in_the_older_one(transformers_457):
    only = "exactly_where_transformers_has_the_interface or never_calls"
    command = [transformers_457, "-m", "pytest", "-q", "-p", "no:cacheprovider", PACKING, "-k", only]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout
    assert re.search(r"1\d passed", done.stdout)
