"""The findings of lint and the edits that fix them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""error: broken, or has another effect than intended; warning: works but will cause trouble; note: worth knowing."""

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
COUNTED: tuple[Severity, ...] = ("error", "warning")
"""The severities that make the exit code 1."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of whole lines, applied by ``--fix``; exists only where the intention is unambiguous.

    Attributes:
        first, last: the lines to remove, from 1; ``last`` is ``first - 1`` for a pure insertion.
        lines: the lines to insert, without line ends.
    """

    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Issue:
    """What a rule reports; :meth:`tsbatch.lint.registry.Rule.apply` adds file, rule id and severity.

    Attributes:
        line: the line, from 1.
        message: what is wrong, in the file's own terms.
        effect: what TorchServe will actually do.
        replacement: the exact text to write instead; empty if there is nothing to copy.
        edit: the same as a safe edit; None if a person must decide.
        file: the file, if it is not the document that the rule examines.
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
        line: the line, from 1.
        severity: error, warning or note.
        message, effect, replacement, edit: as in ``Issue``.
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
        """Return the finding for ``--json``."""
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
