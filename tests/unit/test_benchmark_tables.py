"""What the benchmarks' reports have in common."""

from __future__ import annotations

import json
from pathlib import Path

import _tables
import pytest
from _ratios import Spread

BEGIN = "<!-- measured by benchmarks/x.py -->"
ROOT = Path(__file__).resolve().parents[2]


def test_the_tables_go_where_the_old_ones_were():
    page = f"a\n{BEGIN}\nold\n{_tables.END}\nb\n"
    once = _tables.into(page, "new", BEGIN)
    assert once == f"a\n{BEGIN}\nnew\n{_tables.END}\nb\n"
    assert _tables.into(once, "new", BEGIN) == once
    with pytest.raises(SystemExit, match="no lines"):
        _tables.into("a page without a place", "new", BEGIN)


@pytest.mark.parametrize(
    "name",
    [
        "_serving_report",
        "closing",
        "peers",
        "load_time",
        "engines",
        "worker_profile",
        "micro_batching",
        "simulate",
        "simulator_accuracy",
    ],
)
def test_every_page_has_a_place_for_its_tables(name):
    begin = __import__(name).BEGIN
    pages = [page for page in (ROOT / "docs").glob("*.md") if begin in page.read_text(encoding="utf-8")]
    assert len(pages) == 1


@pytest.mark.parametrize("below, met", [(False, True), (True, False)])
def test_the_median_decides_whether_a_target_is_met(below, met):
    assert _tables.Target("speed", 2.0, Spread(2.5, 1.0, 3.0), below).met is met
    assert _tables.Target("speed", 2.0, Spread(2.0, 1.0, 3.0), below).met


def test_figures_are_measured_saved_and_shown_again(tmp_path, capsys):
    file, page = tmp_path / "figures.json", tmp_path / "page.md"
    page.write_text(f"{BEGIN}\nold\n{_tables.END}")
    parser = _tables.options("a benchmark")
    first = parser.parse_args(["--save", str(file), "--json"])
    figures = _tables.figures_of(first, lambda: {"schema": 1, "rate": 3.0})
    missed = _tables.Target("× the others", 4.0, Spread(3.0, 2.0, 3.5))
    assert _tables.deliver(first, figures, "the table", page, BEGIN, [missed]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == {"schema": 1, "rate": 3.0}
    assert "missed: × the others: target ≥ 4.00, measured 3.00 (2.00 to 3.50)" in said.err
    assert "old" in page.read_text()
    again = parser.parse_args(["--from", str(file), "--write"])
    assert _tables.figures_of(again, lambda: pytest.fail("measured again")) == figures
    assert _tables.deliver(again, figures, "the table", page, BEGIN, []) == 0
    assert capsys.readouterr().out == "the table\n"
    assert page.read_text() == f"{BEGIN}\nthe table\n{_tables.END}"
