"""Scripts/test.py passes in a fresh clone in at most 15 minutes."""

from __future__ import annotations

import re
import time

from tests.acceptance.stranger import ROOT, base_python, fresh_clone, stranger

LIMIT_MINUTES = 15


def test_everything_passes_in_time(tmp_path, record_property):
    clone = fresh_clone(tmp_path / "tsbatch")
    with stranger(tmp_path, java=True) as newcomer:
        started = time.monotonic()
        code = newcomer.run([base_python(), str(clone / "scripts" / "test.py")], tmp_path / "log", minutes=40)
        minutes = (time.monotonic() - started) / 60
        said = (tmp_path / "log").read_text()
        assert code == 0, said[-20_000:]
        passed, skipped = (sum(map(int, re.findall(rf"(\d+) {what}", said))) for what in ("passed", "skipped"))
        (coverage,) = re.findall(r"^TOTAL .* (\d+)%\s*$", said, re.MULTILINE)
        record_property("coverage of lines and branches in %", int(coverage))
        record_property("minutes", round(minutes, 1))
        record_property("tests passed", passed)
        record_property("tests skipped", skipped)
        assert passed > 100
        assert int(coverage) >= 95
        assert minutes <= LIMIT_MINUTES
        assert newcomer.left_behind()["processes"] == []


def test_ci_runs_the_same_script():
    assert "python3 scripts/test.py" in (ROOT / ".ci" / "run").read_text()
