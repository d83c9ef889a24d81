"""Render findings as text, as GitHub annotations and as SARIF 2.1.0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tsbatch._version import __version__
from tsbatch.lint.findings import SEVERITIES, Finding
from tsbatch.lint.registry import all_rules

GITHUB = {"error": "error", "warning": "warning", "note": "notice"}
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def render_text(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield ``file:line: severity: message [rule]``, followed by what TorchServe does and what to write instead."""
    for finding in findings:
        yield f"{finding.file}:{finding.line}: {finding.severity}: {finding.message} [{finding.rule}]"
        yield f"    then: {finding.effect}"
        lines = finding.replacement.splitlines()
        yield from (f"    {'write:' if number == 0 else '      '} {line}" for number, line in enumerate(lines))


def render_summary(findings: Sequence[Finding]) -> str:
    """Return the number of findings of each severity, in one line."""
    counts = Counter(finding.severity for finding in findings)
    parts = [f"{counts[each]} {each}{'s' if counts[each] != 1 else ''}" for each in SEVERITIES if counts[each]]
    return ", ".join(parts) or "nothing found"


def render_github(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the workflow commands that GitHub displays next to the lines."""
    for finding in findings:
        position = f"file={_escape(finding.file, ',:')},line={finding.line},title={_escape(finding.rule, ',:')}"
        parts = [finding.message, finding.effect, f"write: {finding.replacement}" if finding.replacement else ""]
        yield f"::{GITHUB[finding.severity]} {position}::{_escape(chr(10).join(filter(None, parts)))}"


def render_sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return one run as SARIF 2.1.0, with every rule."""
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.explanation},
            "defaultConfiguration": {"level": rule.severity},
        }
        for rule in all_rules().values()
    ]
    driver = {"name": "tsbatch lint", "version": __version__, "rules": rules}
    results = [_result(finding) for finding in findings]
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(finding: Finding) -> dict[str, Any]:
    parts = [f"{finding.message}. {finding.effect}."]
    parts += [f"Write: {finding.replacement}"] if finding.replacement else []
    location = {
        "artifactLocation": {"uri": finding.file.replace("\\", "/").replace(" ", "%20")},
        "region": {"startLine": finding.line},
    }
    return {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": " ".join(parts)},
        "locations": [{"physicalLocation": location}],
    }


def _escape(value: str, more: str = "") -> str:
    value = value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return value.translate({ord(letter): f"%{ord(letter):02X}" for letter in more})


def render_rules_table() -> str:
    """Return a Markdown table of all rules, for docs/lint.md."""
    rows = [
        f"| `{rule.id}` | {rule.severity} | {_cell(rule.title)} | {_cell(rule.explanation)} |"
        for rule in all_rules().values()
    ]
    return "\n".join(["| rule | severity | finds | explanation |", "| --- | --- | --- | --- |", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
