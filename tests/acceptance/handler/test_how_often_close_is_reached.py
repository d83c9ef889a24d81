"""The table in the docs of how often close() is reached; benchmarks/closing.py measures it."""

from __future__ import annotations

from pathlib import Path

from _tables import END

from benchmarks.closing import BEGIN, WAYS, cells

PAGE = Path(__file__).parents[3] / "docs" / "closing.md"


def test_the_docs_have_a_row_of_twenty_tries_for_every_way_a_worker_ends():
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    assert [(way, state) for way, state, *_ in rows] == cells(WAYS)
    assert all(row[2].endswith("of 20") and row[4].endswith("of 20") for row in rows)
