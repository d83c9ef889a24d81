"""A log folder of a handler that is not ours leads to the same diagnosis."""

from __future__ import annotations

import pytest

from tests.acceptance.regimes import CASES, FOREIGN, Case, log_of, registered, run
from tsbatch.diagnosis.data_sources import choose, of_model_log
from tsbatch.diagnosis.ts_log import read_log
from tsbatch.serving.server import Server


@pytest.fixture(scope="module")
def server():
    with Server.start(name="acceptance-foreign") as server:
        yield server


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_handler_of_somebody_elses(case: Case, server, tmp_path, record_property):
    archive = case.archive(tmp_path, FOREIGN)
    with registered(server, archive, case.settings) as model:
        load = run(server, model, case.load)
        folder = log_of(server, load, tmp_path / "log")
    assert "HandlerTime" not in (folder / "ts_log.log").read_text(encoding="utf-8")
    log = choose(read_log(folder), model)
    diagnosis = of_model_log(log, load.known_with_cpu(log.samples()))
    change = diagnosis.advice.change
    record_property("log", f"{diagnosis.finding.regime}; {change}")
    assert diagnosis.finding.regime is case.regime, diagnosis.finding.evidence
    assert (change and change.setting) == case.helps, diagnosis.advice
