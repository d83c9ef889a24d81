"""What lint finds, and how a finding can be mended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""error: does not do what it says, or breaks; warning: works and will hurt; note: worth knowing."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
COUNTED: tuple[Severity, ...] = ("error", "warning")
"""Those that make the exit code 1."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Whole lines of a file in other words; applied by ``--fix``, so only where nothing else can be meant.

    Attributes:
        first, last: the lines that go, from 1; ``last`` is ``first - 1`` where nothing goes and lines are put in.
        lines: the lines that come, without line ends.
    """

    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What a rule says about one place; its file, id and severity are added by whoever runs the rule.

    Attributes:
        line: where, from 1.
        message: what is wrong, with the words of the file.
        effect: what TorchServe will really do.
        replacement: the exact text to write instead; empty where there is nothing to copy.
        edit: the same as a safe edit; None where a person must decide.
        file: where, when it is not the file that the rule was given.
    """

    line: int
    message: str
    effect: str
    replacement: str = ""
    edit: Edit | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        rule: the rule's id.
        file: the file as it was given; ``ARCHIVE!NAME`` for one inside an archive.
        line: from 1.
        severity: error, warning or note.
        message, effect, replacement, edit: as in ``Found``.
    """

    rule: str
    file: str
    line: int
    severity: Severity
    message: str
    effect: str
    replacement: str
    edit: Edit | None

    def as_json(self) -> dict[str, object]:
        """For ``--json``."""
        return {
            "rule": self.rule,
            "file": self.file,
            "line": self.line,
            "severity": self.severity,
            "message": self.message,
            "effect": self.effect,
            "replacement": self.replacement,
            "fixable": self.edit is not None,
        }


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """By file, line, then rule."""
    return sorted(findings, key=lambda finding: (finding.file, finding.line, finding.rule))
