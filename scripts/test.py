#!/usr/bin/env python3
"""Everything a change must pass, in at most 15 minutes: lint, format, types, then a slice of every test.

    python scripts/test.py              all of it, with coverage
    python scripts/test.py -k payload   the checks, and the tests that pytest selects with these words

Needs nothing but Python 3.10 or newer: it makes ``.venv`` itself. The exit code is 0 only when all passed.
"""

from __future__ import annotations

import subprocess
import sys
import time

import _venv

LIMIT_MINUTES = 15
TYPED = ("src", "scripts", "handlers", "benchmarks")


def main(words: list[str]) -> int:
    """Run all steps, also after one failed, and print what each of them said and took."""
    started = time.monotonic()
    steps = {
        "lint": ["ruff", "check", "."],
        "format": ["ruff", "format", "--check", "."],
        "types": ["mypy", *TYPED],
    }
    if words:
        steps["tests"] = ["pytest", *words]
    else:
        # Not pytest-cov: pytest loads our own plugin, and much of the package with it, before that starts counting.
        steps["tests"] = ["coverage", "run", "-m", "pytest", "--durations=15"]
        steps["coverage"] = ["coverage", "report"]
    outcomes = {name: _run(name, command) for name, command in steps.items()}
    failed = [name for name, (code, _) in outcomes.items() if code]
    print()
    for name, (code, seconds) in outcomes.items():
        print(f"{name:8} {'FAILED' if code else 'passed':8} {seconds:6.1f} s")
    minutes = (time.monotonic() - started) / 60
    print(f"{'FAILED: ' + ', '.join(failed) if failed else 'all passed'} in {minutes:.1f} of {LIMIT_MINUTES} minutes")
    return 1 if failed else 0


def _run(name: str, command: list[str]) -> tuple[int, float]:
    print(f"\n== {name}: {' '.join(command)}", flush=True)
    started = time.monotonic()
    code = subprocess.call([sys.executable, "-m", *command], cwd=_venv.ROOT, stdin=subprocess.DEVNULL)
    return code, time.monotonic() - started


if __name__ == "__main__":
    _venv.enter()
    sys.exit(main(sys.argv[1:]))
