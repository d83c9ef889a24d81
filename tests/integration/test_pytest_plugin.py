"""The plugin in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

# The working copy may be on the path without being installed.
INSTALLED = any(entry.name == "tsbatch" for entry in entry_points(group="pytest11"))
OPTIONS = ["-p", "no:cacheprovider", *([] if INSTALLED else ["-p", "tsbatch.pytest_plugin"])]

HANDLER = """
    class Mean:
        def initialize(self, context):
            self.model_dir = context.system_properties["model_dir"]

        def handle(self, data, context):
            longest = max(len(row["body"]) for row in data) if LEAKS else 10
            return [{"mean": len(row["body"]) / longest} for row in data]

        def close(self):
            print("closed", self.model_dir)
"""
TEST = """
    from tsbatch.testing.pytest_plugin import assert_batch_invariant

    LEAKS = False
    {handler}

    def test_invariance(handler_runner, tmp_path):
        runner = handler_runner(Mean, tmp_path, batch_size=4)
        assert_batch_invariant(runner, ["a", "bb", "cccc"], batch_sizes=(1, 2))
"""


@pytest.fixture(scope="module", autouse=True)
def torchserve_imported(tmp_path_factory):
    """What a run inside this process imports first, it would take out of ``sys.modules`` again."""
    from tsbatch.testing.invariance import HandlerRunner

    handler = type("Own", (), {"initialize": lambda *_: None, "handle": lambda _, data, __: data})
    with HandlerRunner.from_class(handler, tmp_path_factory.mktemp("model")) as runner:
        assert runner.predict_one({}).ok


@pytest.fixture
def source():
    return TEST.format(handler=HANDLER.strip("\n").lstrip())


def test_the_fixture_makes_runners_of_classes_and_closes_them(pytester, source):
    pytester.makepyfile(source)
    result = pytester.runpytest_inprocess(*OPTIONS, "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*closed *test_invariance0"])


def test_a_failure_reads_well(pytester, source):
    pytester.makepyfile(source.replace("LEAKS = False", "LEAKS = True"))
    result = pytester.runpytest_inprocess(*OPTIONS, "-s")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*closed *",
            "*AssertionError: request 0 ('a') is answered differently in the batch of 2 *0, 1*, in order:",
            "*$.mean: alone 1.0, in the batch 0.5, difference 0.5",
            "*tolerance: atol=1e-05, rtol=0.0001",
        ]
    )
    # The traceback ends in the test, not inside the assertion.
    result.stdout.no_fnmatch_line("*invariance.py:*: AssertionError")


def test_the_fixture_makes_runners_of_archives(pytester, make_mar):
    mar = make_mar("LEAKS = False\n" + "\n".join(line[4:] for line in HANDLER.splitlines()))
    pytester.makepyfile(
        f"""
        def test_archive(handler_runner):
            assert handler_runner({str(mar)!r}, batch_size=2).predict_one("abcde").json() == {{"mean": 0.5}}
        """
    )
    pytester.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=1)


def test_the_fixture_is_listed_with_its_help(pytester):
    result = pytester.runpytest_inprocess(*OPTIONS, "--fixtures")
    result.stdout.fnmatch_lines(["handler_runner*", "*from a class and its model folder, or*"])


def test_pytest_starts_without_torch():
    program = (
        "import sys, tsbatch.pytest_plugin\n"
        "print(sorted({'torch', 'ts', 'numpy', 'transformers', 'pydantic'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_name_the_plugin_has_not():
    import tsbatch.testing.pytest_plugin as plugin

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        plugin.nothing  # noqa: B018
