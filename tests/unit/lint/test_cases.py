"""Every rule on the files of tests/lint_cases: it reports the bad case, and not the near miss.

``bad`` and ``near`` contain files whose first line states the expected findings, and folders whose ``expect.txt`` does.
A bad case must give exactly these findings, a near miss and a good file no error or warning at all.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tsbatch.lint.documents import Machine
from tsbatch.lint.findings import COUNTED, Finding
from tsbatch.lint.registry import all_rules
from tsbatch.lint.run import lint

CASES = Path(__file__).resolve().parents[2] / "lint_cases"
CORES = 4


@dataclass(frozen=True)
class Case:
    """One file or folder with its expected findings."""

    path: Path

    @property
    def header(self) -> list[str]:
        notes = self.path / "expect.txt" if self.path.is_dir() else self.path
        return notes.read_text(encoding="utf-8").splitlines()

    @property
    def expected(self) -> list[tuple[str, int, str]]:
        """(file, line, rule), sorted."""
        if self.path.is_dir():
            found = [re.fullmatch(r"expect (\S+):(\d+): (\S+)", line) for line in self.header]
            return sorted((match[1], int(match[2]), match[3]) for match in found if match)
        words = self.header[0].removeprefix("# expect: ").split(", ")
        return sorted((self.path.name, int(line), rule) for rule, line in (word.split(":") for word in words))

    @property
    def near(self) -> str:
        """The rule that must not report anything."""
        return self.header[0].removeprefix("# ").removeprefix("near").strip(": ")

    def findings(self) -> list[Finding]:
        lines = [line.removeprefix("# environ: ") for line in self.header if line.startswith("# environ: ")]
        environ = dict(line.split("=", 1) for line in lines)
        return lint([self.path], machine=Machine(cores=CORES, environ=environ))

    def reported(self, findings: list[Finding]) -> list[tuple[str, int, str]]:
        """The findings as ``expected`` has them."""
        below = f"{self.path.as_posix()}/" if self.path.is_dir() else f"{self.path.parent.as_posix()}/"
        return sorted((each.file.removeprefix(below), each.line, each.rule) for each in findings)


def cases(kind: str) -> list[Case]:
    return [Case(path) for path in sorted((CASES / kind).iterdir())]


BAD, NEAR, GOOD = cases("bad"), cases("near"), cases("good")


def name_of(case: Case) -> str:
    return case.path.name


@pytest.mark.parametrize("case", BAD, ids=name_of)
def test_a_bad_case_gives_exactly_the_expected_findings(case):
    found = case.findings()
    counted = Counter(case.reported([each for each in found if each.severity in COUNTED]))
    expected = Counter(case.expected)
    assert not counted - expected, "unexpected"
    assert not expected - Counter(case.reported(found)), "missing"
    assert all(each.effect for each in found)


@pytest.mark.parametrize("case", NEAR, ids=name_of)
def test_a_near_miss_is_not_reported(case):
    found = case.findings()
    assert case.near in all_rules()
    assert case.near not in {each.rule for each in found}
    assert [each for each in found if each.severity in COUNTED] == []


@pytest.mark.parametrize("case", GOOD, ids=name_of)
def test_a_good_file_has_no_error_and_no_warning(case):
    found = lint([case.path], machine=Machine(cores=CORES, environ={}))
    assert [each for each in found if each.severity in COUNTED] == []


def test_the_cases_are_many_enough():
    assert len(BAD) >= 60
    assert len(GOOD) >= 20


def test_every_rule_has_a_bad_case_and_a_near_miss():
    expected = {rule for case in BAD for _, _, rule in case.expected}
    assert set(all_rules()) - expected == set()
    assert set(all_rules()) - {case.near for case in NEAR} == set()
