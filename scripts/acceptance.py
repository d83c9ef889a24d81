#!/usr/bin/env python3
"""Runs what each issue must show, as long as it takes, and writes a report with the figures.

    python scripts/acceptance.py             all issues
    python scripts/acceptance.py 2           issue 2
    python scripts/acceptance.py 2 --line 1  only that line of it

The report goes to ``reports/acceptance.json`` and ``.txt``, each line's whole output beside it. The exit code is 0
only when every line passed. A line that was not run, wholly or in part, is reported as not run, never as passed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as ET

import _venv

REPORTS = _venv.ROOT / "reports"
TESTS = "tests/acceptance"
Verdict = Literal["passed", "failed", "not run"]


@dataclass(frozen=True)
class Check:
    """How one line of an issue's "It must show" is shown.

    Attributes:
        issue, line: which one.
        title: what it shows, in a few words.
        script: a script that exits 0 when it is shown and prints its figures as one JSON object on the last line;
            without it the line is shown by pytest, in every file ``tests/acceptance/test_issueI_lineLL_*.py``.
        minutes: when to give up.
    """

    issue: int
    line: int
    title: str
    script: tuple[str, ...] = ()
    minutes: int = 20

    def files(self) -> list[str]:
        """The files it consists of, relative to the root; empty when it cannot be run yet."""
        pattern = self.script[0] if self.script else f"{TESTS}/test_issue{self.issue}_line{self.line:02}_*.py"
        return sorted(path.relative_to(_venv.ROOT).as_posix() for path in _venv.ROOT.glob(pattern))


CHECKS = (
    Check(2, 1, "quickstart in a fresh clone without Java", minutes=30),
    Check(2, 2, "scripts/test.py in a fresh clone, at most 15 minutes", minutes=45),
    Check(2, 3, "a batch of eight with three bad requests"),
    Check(2, 4, "every shape on every address, gRPC too"),
    Check(2, 5, "misbehaving subclasses hurt nobody else"),
    Check(2, 6, "the model folder may go after initialize"),
    Check(2, 7, "queue wait, assembly wait and handler time have known answers"),
    Check(2, 8, "a built wheel with the stock archiver and server", minutes=30),
    Check(2, 9, "own handlers in the docs run, with ts blocked too"),
    Check(2, 10, "how often close() is reached", script=("benchmarks/closing.py",), minutes=60),
    Check(2, 11, "what the handler costs", script=("benchmarks/handler_overhead.py",), minutes=60),
)


@dataclass
class Result:
    """What became of one check."""

    check: Check
    verdict: Verdict
    seconds: float = 0.0
    why: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def main(words: list[str]) -> int:
    """Run the checks that ``words`` choose and write the report."""
    parser = argparse.ArgumentParser(description="Run what the issues must show.")
    parser.add_argument("issues", nargs="*", type=int, help="issue numbers; all when none is given")
    parser.add_argument("--line", type=int, action="append", help="only this line; may be repeated")
    chosen = parser.parse_args(words)
    checks = [
        check
        for check in CHECKS
        if (not chosen.issues or check.issue in chosen.issues) and (not chosen.line or check.line in chosen.line)
    ]
    if not checks:
        known = sorted({check.issue for check in CHECKS})
        parser.error(f"no such issue or line; issues with checks: {', '.join(map(str, known))}")
    REPORTS.mkdir(exist_ok=True)
    results = []
    for check in checks:
        print(f"\n== issue {check.issue}, line {check.line}: {check.title}", flush=True)
        results.append(run(check))
        write(results, of=len(checks))
    print(f"\n{text(results)}")
    return 0 if all(result.verdict == "passed" for result in results) else 1


def run(check: Check) -> Result:
    """Run one check; its output goes to the terminal and to a file."""
    files = check.files()
    if not files:
        return Result(check, "not run", why="nothing there that shows it")
    base = REPORTS / f"issue{check.issue}-line{check.line:02}"
    junit = base.with_suffix(".xml")
    junit.unlink(missing_ok=True)
    command = [sys.executable, *check.script]
    if not check.script:
        command += ["-m", "pytest", "-v", "-rA", "--durations=5", f"--junitxml={junit}", *files]
    started = time.monotonic()
    code = _stream(command, base.with_suffix(".log"), check.minutes * 60)
    seconds = time.monotonic() - started
    if code is None:
        return Result(check, "failed", seconds, f"not finished after {check.minutes} minutes")
    if check.script:
        return _judge_script(check, code, seconds, base.with_suffix(".log"))
    return _judge_tests(check, code, seconds, junit)


def _stream(command: list[str], log: Path, limit: float) -> int | None:
    """The exit code, or None when the time was up and the command was ended."""
    deadline = time.monotonic() + limit
    with log.open("w", encoding="utf-8") as file:
        child = subprocess.Popen(
            command, cwd=_venv.ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            with log.open(encoding="utf-8", errors="replace") as reader:
                while child.poll() is None and time.monotonic() < deadline:
                    print(reader.read(), end="", flush=True)
                    time.sleep(0.2)
                print(reader.read(), end="", flush=True)
            return child.poll()
        finally:
            if child.poll() is None:
                # As Ctrl-C does: what runs there starts servers and must get the chance to stop them.
                child.send_signal(signal.SIGTERM if os.name == "nt" else signal.SIGINT)
                try:
                    child.wait(60)
                except subprocess.TimeoutExpired:
                    child.kill()


def _judge_script(check: Check, code: int, seconds: float, log: Path) -> Result:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        figures = json.loads(lines[-1])
    except (IndexError, ValueError):
        figures = {}
    if code:
        return Result(check, "failed", seconds, f"exit code {code}", figures)
    if not isinstance(figures, dict) or not figures:
        return Result(check, "failed", seconds, "printed no figures")
    return Result(check, "passed", seconds, figures=figures)


def _judge_tests(check: Check, code: int, seconds: float, junit: Path) -> Result:
    if not junit.exists():
        return Result(check, "failed", seconds, f"pytest ended with {code} and no report")
    # Written by the pytest that we just ran.
    suite = ET.parse(junit).getroot()  # noqa: S314
    cases = list(suite.iter("testcase"))
    figures = {item.attrib["name"]: _number(item.attrib["value"]) for item in suite.iter("property")}
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case.attrib["name"] for case in cases if case.find("skipped") is not None]
    figures["tests"] = len(cases)
    if code or failed:
        why = f"{len(failed)} of {len(cases)} tests failed" if failed else f"pytest ended with {code}"
        return Result(check, "failed", seconds, why, figures)
    if skipped or not cases:
        why = f"skipped: {', '.join(skipped)}" if skipped else "no test was found"
        return Result(check, "not run", seconds, why, figures)
    return Result(check, "passed", seconds, figures=figures)


def _number(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def write(results: list[Result], *, of: int) -> None:
    """Write the report so far, so that an interrupted run leaves one too."""
    whole = {
        "schema": 1,
        "python": platform.python_version(),
        "system": platform.platform(),
        "checks": of,
        "results": [dataclasses.asdict(result) for result in results],
    }
    (REPORTS / "acceptance.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    (REPORTS / "acceptance.txt").write_text(text(results) + "\n", encoding="utf-8")


def text(results: list[Result]) -> str:
    """The report for people: one line a check, its figures below it, the sum at the end."""
    lines = []
    for result in results:
        check = result.check
        why = f"  ({result.why})" if result.why else ""
        lines.append(f"{check.issue:3}.{check.line:<3} {result.verdict:8} {result.seconds:7.1f} s  {check.title}{why}")
        lines += [f"{'':29}{name}: {value}" for name, value in result.figures.items()]
    counts = [f"{sum(result.verdict == verdict for result in results)} {verdict}" for verdict in ("passed", "failed")]
    missing = sum(result.verdict == "not run" for result in results)
    return "\n".join([*lines, f"{', '.join(counts)}, {missing} not run"])


if __name__ == "__main__":
    _venv.enter()
    sys.exit(main(sys.argv[1:]))
