"""The commands of docs/simulate.md and docs/plan.md run; tests/unit/test_readme.py runs the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.unit.simulation.results import result_of
from tsbatch.bench.send_times import Arrivals
from tsbatch.cli.program import main
from tsbatch.simulation.batching_rules import Settings
from tsbatch.simulation.service_time import parse
from tsbatch.simulation.simulator import simulate
from tsbatch.simulation.workload import take

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("simulate.md", "plan.md")


def blocks(page, language):
    return re.findall(
        rf"^```{language}\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


COMMANDS = [
    line
    for page in PAGES
    for block in blocks(page, "sh")
    for line in block.splitlines()
    if line.startswith(("tsbatch simulate", "tsbatch plan"))
]


@pytest.fixture
def with_bench_file(tmp_path, monkeypatch):
    arrivals = take(Arrivals("poisson", 40.0, seed=1), 3000)
    simulated = simulate(Settings(batch_size=8, max_batch_delay=10), arrivals, parse("20+3*n", variation=0.1))
    result_of(simulated.samples).save(tmp_path / "bench.json")
    monkeypatch.chdir(tmp_path)


def test_there_are_commands():
    assert len(COMMANDS) == 5


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, with_bench_file, capsys):
    quick = ["--requests", "2000"] + (["--max-workers", "2"] if " plan " in command else [])
    assert main([*shlex.split(command)[1:], *quick]) == 0
    assert "P99" in capsys.readouterr().out.upper()
