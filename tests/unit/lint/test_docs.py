"""docs/lint.md lists every rule as it is."""

from __future__ import annotations

import re
from pathlib import Path

from tsbatch.lint.output import rules_markdown

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lint.md"
HOW = 'replace the table by: python -c "from tsbatch.lint.output import rules_markdown; print(rules_markdown())"'


def test_the_page_has_the_table_of_rules():
    assert PAGE.read_text(encoding="utf-8").endswith(f"## The rules\n\n{rules_markdown()}\n"), HOW


def test_no_rule_says_nothing():
    for line in rules_markdown().splitlines()[2:]:
        cells = re.split(r"(?<!\\)\|", line)
        assert len(cells) == 6, line
        assert all(len(cell.strip()) > 3 for cell in cells[1:5]), line
