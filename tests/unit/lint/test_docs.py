"""docs/lint.md lists every rule."""

from __future__ import annotations

import re
from pathlib import Path

from tsbatch.lint.output import render_rules_table

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lint.md"
HOW = (
    'replace the table by: python -c "from tsbatch.lint.output import render_rules_table; print(render_rules_table())"'
)


def test_the_page_has_the_table_of_rules():
    assert PAGE.read_text(encoding="utf-8").endswith(f"## The rules\n\n{render_rules_table()}\n"), HOW


def test_every_rule_is_documented():
    for line in render_rules_table().splitlines()[2:]:
        cells = re.split(r"(?<!\\)\|", line)
        assert len(cells) == 6, line
        assert all(len(cell.strip()) > 3 for cell in cells[1:5]), line
