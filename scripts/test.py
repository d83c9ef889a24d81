#!/usr/bin/env python3
"""Run every check that a change must pass, in at most 15 minutes: lint, format, types, layers, and the tests.

    python scripts/test.py              all checks and tests, with coverage
    python scripts/test.py -k payload   the checks, and the tests that pytest selects with these arguments

The only prerequisite is Python 3.10 or newer: the script creates ``.venv``. The exit code is 0 only if all
steps passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import _venv

LIMIT_MINUTES = 15
TYPED = ("src", "scripts", "handlers", "benchmarks")
MAX_PROCESSES = 5
"""Each process imports torch and uses one or two gigabytes of memory."""


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: shown in the summary.
        words: the module that ``python -m`` runs and its arguments, or ``-c`` and a program.
        variables: additional environment variables.
    """

    name: str
    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


CHECKS = (
    Step("lint", ["ruff", "check", "."]),
    Step("format", ["ruff", "format", "--check", "."]),
    Step("types", ["mypy", *TYPED]),
    Step("layers", ["-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"]),
)


def main(words: list[str]) -> int:
    """Run all steps, even if one fails, and print each step's result and duration."""
    started = time.monotonic()
    steps = [*CHECKS, *([Step("tests", ["pytest", *words])] if words else all_tests())]
    outcomes = [(step.name, *_run(step)) for step in steps]
    failed = [name for name, code, _ in outcomes if code]
    print()
    for name, code, seconds in outcomes:
        print(f"{name:8} {'FAILED' if code else 'passed':8} {seconds:6.1f} s")
    minutes = (time.monotonic() - started) / 60
    result = f"FAILED: {', '.join(failed)}" if failed else "all passed"
    print(f"{result} in {minutes:.1f} minutes (limit {LIMIT_MINUTES})")
    return 1 if failed else 0


def all_tests() -> list[Step]:
    """List the steps: parallel tests, tests that need the machine to themselves, and the coverage of both.

    pytest-cov is not used because pytest loads tsbatch's own plugin, and much of the package with it, before pytest-cov
    starts counting. Instead, the variable makes coverage start with each xdist process (its .pth file reads it).
    """
    # One more process than cores, because the process that runs the servers (tests/e2e) mostly waits.
    processes = str(min((os.cpu_count() or 1) + 1, MAX_PROCESSES))
    together = ["pytest", "-n", processes, "--dist", "loadgroup", "-m", "not alone and not slow", "--durations=15"]
    alone = ["coverage", "run", "-m", "pytest", "-m", "alone and not slow", "--durations=5"]
    return [
        Step("clean", ["coverage", "erase"]),
        Step("tests", together, {"COVERAGE_PROCESS_START": str(_venv.ROOT / "pyproject.toml")}),
        Step("alone", alone),
        Step("combine", ["coverage", "combine", "--quiet"]),
        Step("coverage", ["coverage", "report"]),
    ]


def _run(step: Step) -> tuple[int, float]:
    print(f"\n== {step.name}: {' '.join(step.words)}", flush=True)
    started = time.monotonic()
    command = [sys.executable, *([] if step.words[0] == "-c" else ["-m"]), *step.words]
    code = subprocess.call(command, cwd=_venv.ROOT, env={**os.environ, **step.variables}, stdin=subprocess.DEVNULL)
    return code, time.monotonic() - started


if __name__ == "__main__":
    _venv.enter()
    sys.exit(main(sys.argv[1:]))
