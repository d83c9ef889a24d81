"""A diagnosis in words, shown on the terminal and in the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tsbatch.diagnosis.diagnosis import Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Sentences, and lines to copy.

    Attributes:
        title: a heading above them; empty for none.
        lines: one paragraph each.
        code: lines for a shell or a file.
    """

    kind: ClassVar[str] = "words"
    title: str = ""
    lines: Sequence[str] = ()
    code: str = ""


def reasons(diagnosis: Diagnosis) -> list[Words]:
    """Evidence and pitfalls."""
    return _filled(
        Words(title="Evidence", lines=diagnosis.finding.evidence),
        Words(title="Caveats", lines=diagnosis.pitfalls),
    )


def next_step(diagnosis: Diagnosis) -> list[Words]:
    """The next change, and the limitations of the figures."""
    advice, change = diagnosis.advice, diagnosis.advice.change
    code = ""
    if change is not None:
        command = change.command(diagnosis.known.model or "MODEL", diagnosis.known.engine)
        code = (f"{command}\n\n" if command else "") + f"# or in model-config.yaml:\n{change.yaml()}"
    return _filled(
        Words(title=f"Next single change: {change or 'none'}", lines=[advice.why], code=code),
        Words(title="What would prove it wrong", lines=[advice.disproof]),
        Words(title="What not to change meanwhile", lines=[", ".join(advice.leave)] if advice.leave else []),
        Words(title="Limitations of these figures", lines=diagnosis.remarks),
    )


def _filled(*parts: Words) -> list[Words]:
    return [part for part in parts if part.lines]
