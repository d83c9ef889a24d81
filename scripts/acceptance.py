#!/usr/bin/env python3
"""Run the acceptance checks, however long they take, and write a report with the figures.

    python scripts/acceptance.py                      all checks
    python scripts/acceptance.py tuning ray           the checks of two capabilities
    python scripts/acceptance.py tuning --only killed one of them
    python scripts/acceptance.py --list               the checks and what each of them proves

The report goes to ``reports/acceptance.json`` and ``.txt``, with the whole output of each check beside it. The exit
code is 0 only if every check passed. A check that did not run, wholly or in part, is reported as not run, never as
passed.
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
from _checks import CHECKS, Check, capabilities, table

REPORTS = _venv.ROOT / "reports"
Verdict = Literal["passed", "failed", "not run"]
BEST_FIRST: tuple[Verdict, ...] = ("passed", "not run", "failed")


@dataclass
class Result:
    """The outcome of one check."""

    check: Check
    verdict: Verdict
    seconds: float = 0.0
    why: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def main(words: list[str]) -> int:
    """Run the checks selected by ``words`` and write the report."""
    parser = argparse.ArgumentParser(description="Run the acceptance checks.")
    parser.add_argument("capabilities", nargs="*", help="groups of checks; all if none is given")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this check; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the checks and exit")
    chosen = parser.parse_args(words)
    if unknown := set(chosen.capabilities) - set(capabilities()):
        parser.error(f"unknown capability: {', '.join(sorted(unknown))}; known: {', '.join(capabilities())}")
    if chosen.list:
        print(table())
        return 0
    checks = [
        check
        for check in CHECKS
        if (not chosen.capabilities or check.capability in chosen.capabilities)
        and (not chosen.only or check.name in chosen.only)
    ]
    if not checks:
        names = [check.name for check in CHECKS if check.capability in (chosen.capabilities or capabilities())]
        parser.error(f"no such check; known: {', '.join(names)}")
    REPORTS.mkdir(exist_ok=True)
    results = []
    for check in checks:
        print(f"\n== {check.capability} {check.name}: {check.title}", flush=True)
        results.append(run(check))
        write(results, of=len(checks))
    print(f"\n{text(results)}")
    return 0 if all(result.verdict == "passed" for result in results) else 1


def run(check: Check) -> Result:
    """Run every part of one check; it passes only if all of them pass."""
    try:
        files = check.files()
    except FileNotFoundError as error:
        return Result(check, "not run", why=f"{error} is not there")
    parts = [run_tests(check, files)] if files else []
    parts += [run_script(check, script) for script in check.scripts]
    if not parts:
        return Result(check, "not run", why="no test and no script proves it")
    worst: Verdict = max((part.verdict for part in parts), key=BEST_FIRST.index)
    return Result(
        check,
        worst,
        seconds=sum(part.seconds for part in parts),
        why="; ".join(part.why for part in parts if part.why),
        figures={name: value for part in parts for name, value in part.figures.items()},
    )


def run_tests(check: Check, files: list[str]) -> Result:
    """Run pytest; its output goes to the terminal and to a file."""
    base = REPORTS / f"{check.capability}-{check.name}"
    junit = base.with_suffix(".xml")
    junit.unlink(missing_ok=True)
    # xunit1 is the form that has room for each test's figures.
    report = [f"--junitxml={junit}", "-o", "junit_family=xunit1"]
    command = [sys.executable, "-m", "pytest", "-v", "-rA", "--durations=5", *report, *files]
    started = time.monotonic()
    code = _stream(command, base.with_suffix(".log"), check.minutes * 60)
    seconds = time.monotonic() - started
    if code is None:
        return Result(check, "failed", seconds, f"pytest was not done after {check.minutes} minutes")
    return _judge_tests(check, code, seconds, junit)


def run_script(check: Check, script: str) -> Result:
    """Run one program; its output goes to the terminal and to a file."""
    if not (_venv.ROOT / script).is_file():
        return Result(check, "not run", why=f"{script} is not there")
    log = REPORTS / f"{check.capability}-{check.name}-{Path(script).stem}.log"
    started = time.monotonic()
    code = _stream([sys.executable, script, "--json"], log, check.minutes * 60)
    seconds = time.monotonic() - started
    if code is None:
        return Result(check, "failed", seconds, f"{script} was not done after {check.minutes} minutes")
    return _judge_script(check, script, code, seconds, log)


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


def _judge_script(check: Check, script: str, code: int, seconds: float, log: Path) -> Result:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    try:
        figures = json.loads(lines[-1])
    except (IndexError, ValueError):
        figures = {}
    named = {Path(script).stem: figures} if isinstance(figures, dict) and figures else {}
    if code:
        return Result(check, "failed", seconds, f"{script} ended with {code}", named)
    if not named:
        return Result(check, "failed", seconds, f"{script} printed no figures")
    return Result(check, "passed", seconds, figures=named)


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
        name = f"{check.capability} {check.name}"
        lines.append(f"{name:26} {result.verdict:8} {result.seconds:7.1f} s  {check.title}{why}")
        lines += [f"{'':46}{figure}: {value}" for figure, value in result.figures.items()]
    counts = [f"{sum(result.verdict == verdict for result in results)} {verdict}" for verdict in ("passed", "failed")]
    missing = sum(result.verdict == "not run" for result in results)
    return "\n".join([*lines, f"{', '.join(counts)}, {missing} not run"])


if __name__ == "__main__":
    _venv.enter()
    sys.exit(main(sys.argv[1:]))
