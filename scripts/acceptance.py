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
BEST_FIRST: tuple[Verdict, ...] = ("passed", "not run", "failed")


@dataclass(frozen=True)
class Check:
    """How one line of an issue's "It must show" is shown.

    Attributes:
        issue, line: which one.
        title: what it shows, in a few words.
        tests: what pytest runs for it, as patterns; ``tests/acceptance/test_issueI_lineLL_*.py`` always belongs to it.
        scripts: programs that exit 0 when it is shown and, asked with ``--json``, print their figures as one object on
            the last line.
        minutes: when to give up, for each part.
    """

    issue: int
    line: int
    title: str
    tests: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    minutes: float = 20

    def files(self) -> list[str]:
        """The test files it consists of, relative to the root.

        Raises:
            FileNotFoundError: one that is named is not there.
        """
        own = f"{TESTS}/test_issue{self.issue}_line{self.line:02}_*.py"
        found = {pattern: sorted(_venv.ROOT.glob(pattern)) for pattern in (own, *self.tests)}
        for pattern in self.tests:
            if not found[pattern]:
                raise FileNotFoundError(pattern)
        return [path.relative_to(_venv.ROOT).as_posix() for paths in found.values() for path in paths]


CHECKS = (
    Check(2, 1, "quickstart in a fresh clone without Java", minutes=40),
    Check(2, 2, "scripts/test.py in a fresh clone, at most 15 minutes", minutes=45),
    Check(2, 3, "a batch of eight with three bad requests"),
    Check(2, 4, "every shape on every address, gRPC too"),
    Check(2, 5, "misbehaving subclasses hurt nobody else", tests=("tests/e2e/test_server.py",)),
    Check(2, 6, "the model folder may go after initialize"),
    Check(2, 7, "queue wait, assembly wait and handler time have known answers"),
    Check(2, 8, "a built wheel with the stock archiver and server", minutes=30),
    Check(2, 9, "own handlers in the docs run, with ts blocked too", tests=("tests/integration/test_examples.py",)),
    Check(2, 10, "how often close() is reached", scripts=("benchmarks/closing.py",), minutes=90),
    Check(
        2,
        11,
        "what the handler costs",
        scripts=("benchmarks/handler_overhead.py", "benchmarks/core_overhead.py"),
        minutes=60,
    ),
    Check(
        3, 1, "faster than three other handlers, and close to the limit", scripts=("benchmarks/serving.py",), minutes=40
    ),
    Check(3, 2, "two workers with nothing set are not slower than one"),
    Check(3, 3, "faster than four other serving systems", scripts=("benchmarks/peers.py",), minutes=60),
    Check(3, 4, "packed, bucketed and padded answer as one by one", tests=("tests/integration/test_packing.py",)),
    Check(3, 5, "the planner finds the best cuts and corrects itself", scripts=("benchmarks/micro_batching.py",)),
    Check(3, 6, "a large model answers soon and is shared", scripts=("benchmarks/load_time.py",), minutes=40),
    Check(
        3,
        7,
        "--engine auto refuses worse answers",
        tests=("tests/integration/test_engines.py",),
        scripts=("benchmarks/engines.py",),
        minutes=40,
    ),
    Check(3, 8, "where a worker's wall time goes", scripts=("benchmarks/worker_profile.py",)),
    Check(4, 1, "lint finds what is wrong, and TorchServe does what it says"),
    Check(4, 2, "effective agrees with TorchServe, layer by layer"),
    Check(4, 3, "archives verify, reproduce, and are never half written", tests=("tests/e2e/test_formats.py",)),
    Check(4, 4, "a 2 GB model beside the stock way"),
    Check(4, 5, "a load that is too slow is told soon, with the value to set"),
    Check(4, 6, "fourteen broken archives: the cause in the first line"),
    Check(4, 7, "reconfigure under load loses no request"),
    Check(4, 8, "tsbatch new works as the README says"),
    Check(5, 1, "six regimes: the split, the diagnosis and the change that helps most", minutes=40),
    Check(5, 3, "a handler that is not ours is diagnosed alike"),
    Check(
        5,
        4,
        "the load generator beside wrk, stalls, and its own cost",
        scripts=("benchmarks/load_generator.py",),
        minutes=25,
    ),
    Check(
        5,
        5,
        "compare on simulated pairs; figures against NumPy and SciPy",
        tests=("tests/unit/bench/test_statistics.py", "tests/unit/bench/test_comparison.py"),
    ),
    Check(5, 6, "the HTML report in a real browser, phone and desktop"),
    Check(5, 7, "a 2 GB log in constant memory", scripts=("benchmarks/diagnose_log.py",)),
    Check(
        6,
        1,
        "the tasks answer as transformers.pipeline does, in 5.x and in 4.57",
        tests=("tests/integration/tasks/test_*.py",),
        minutes=60,
    ),
    Check(6, 2, "a cat is a cat through a real TorchServe, in four ways of sending it"),
    Check(6, 3, "news topics: 0.93 on held-out articles, served as offline"),
    Check(6, 4, "for each task, eight requests of which one is broken"),
    Check(6, 5, "broken images and audio files: no 5xx, no worker death"),
    Check(
        6,
        6,
        "each task beside single requests and TorchServe's own handler",
        scripts=("benchmarks/tasks.py",),
        minutes=60,
    ),
    Check(
        6,
        7,
        "line coverage of at least 95 %",
        tests=("tests/acceptance/test_issue2_line02_fresh_clone.py",),
        minutes=45,
    ),
    Check(
        7,
        1,
        "the simulator beside a real TorchServe, 24 settings and loads",
        tests=("tests/e2e/test_simulate.py",),
        minutes=45,
    ),
    Check(
        7,
        2,
        "the tuner beside brute force and Optuna's sampler",
        tests=("tests/e2e/test_tune.py",),
        scripts=("benchmarks/tuning.py",),
        minutes=90,
    ),
    Check(7, 3, "step by step from a bad start", minutes=40),
    Check(
        7,
        4,
        "nothing to gain changes nothing; noise invents no winner",
        tests=("tests/unit/tuning/test_significance.py",),
        minutes=30,
    ),
    Check(7, 5, "the tuner, a worker and the server killed twenty times", minutes=60),
    Check(
        7,
        6,
        "a plan for 10, 100 and 1000 times a recorded load, and what theory says",
        tests=("tests/unit/simulation/test_planner.py", "tests/unit/simulation/test_simulator.py"),
    ),
    Check(7, 7, "requests a second that are simulated", scripts=("benchmarks/simulate.py",)),
    Check(8, 1, "the same archives on TorchServe and on Ray Serve: the same answers", minutes=40),
    Check(8, 2, "a Ray cluster of three nodes that loses one, gets one, and is updated, under load"),
    Check(
        8,
        3,
        "tsbatch on Ray beside Ray's own way and beside TorchServe",
        scripts=("benchmarks/ray_serve.py",),
        minutes=40,
    ),
    Check(8, 4, "1, 2, 4 and 8 replicas, and what plan says of them", scripts=("benchmarks/ray_replicas.py",)),
    Check(8, 5, "without Ray everything else works", tests=("tests/unit/test_public_names.py",)),
    Check(8, 6, "KServe's manifests of three models, and what their pods would run", minutes=30),
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
    """Run every part of one check; it has passed when all of them have."""
    try:
        files = check.files()
    except FileNotFoundError as error:
        return Result(check, "not run", why=f"{error} is not there")
    parts = [run_tests(check, files)] if files else []
    parts += [run_script(check, script) for script in check.scripts]
    if not parts:
        return Result(check, "not run", why="nothing there that shows it")
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
    base = REPORTS / f"issue{check.issue}-line{check.line:02}"
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
    log = REPORTS / f"issue{check.issue}-line{check.line:02}-{Path(script).stem}.log"
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
        lines.append(f"{check.issue:3}.{check.line:<3} {result.verdict:8} {result.seconds:7.1f} s  {check.title}{why}")
        lines += [f"{'':29}{name}: {value}" for name, value in result.figures.items()]
    counts = [f"{sum(result.verdict == verdict for result in results)} {verdict}" for verdict in ("passed", "failed")]
    missing = sum(result.verdict == "not run" for result in results)
    return "\n".join([*lines, f"{', '.join(counts)}, {missing} not run"])


if __name__ == "__main__":
    _venv.enter()
    sys.exit(main(sys.argv[1:]))
