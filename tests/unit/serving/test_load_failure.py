from __future__ import annotations

import pytest

from tsbatch.check.advice import startup_timeout
from tsbatch.serving.load_failure import load_failed, with_archive
from tsbatch.serving.load_times import remember
from tsbatch.serving.worker_log import Reason

SLOW = Reason("loading took longer than its startupTimeout", timed_out=True)


@pytest.fixture
def archive(tmp_path, monkeypatch):
    monkeypatch.setenv("TSBATCH_STATE_DIR", str(tmp_path / "state"))
    path = tmp_path / "m.mar"
    path.write_bytes(b"model")
    return path


def test_a_cause_comes_with_its_remedy_in_one_line():
    failure = load_failed("m 1.0", Reason("No module named 'PIL' (handler.py:1)"), {})
    assert str(failure).startswith("the model m 1.0 cannot load: No module named 'PIL' (handler.py:1); ")
    assert "pip install Pillow" in str(failure)
    assert str(load_failed("m 1.0", Reason("ValueError: x"), {})) == "the model m 1.0 cannot load: ValueError: x"


@pytest.mark.parametrize("timeout, value", [(10, 120), (120, 480)])
def test_a_time_out_names_a_value_that_is_enough(archive, timeout, value):
    failure = load_failed("m 1.0", SLOW, {"startupTimeout": timeout})
    assert failure.cause == f"loading took over {timeout} s (startupTimeout)"
    assert f"set startupTimeout to at least {value}" in str(failure)
    named = with_archive(failure, archive, "it is not registered")
    assert f"tsbatch check {archive}" in str(named)
    assert str(named).endswith("; it is not registered")


def test_what_a_check_measured_is_said(archive):
    remember(archive, 183.0, startup_timeout(183.0).value)
    failure = with_archive(load_failed("m 1.0", SLOW, {"startupTimeout": 120}), archive, "it is not registered")
    assert "loading took over 120 s (startupTimeout); in-process it took 183 s" in str(failure)
    assert "set startupTimeout to at least 280" in str(failure)


def test_a_measurement_on_a_faster_day_never_asks_for_less_than_there_was(archive):
    remember(archive, 1.0, startup_timeout(1.0).value)
    failure = with_archive(load_failed("m 1.0", SLOW, {"startupTimeout": 60}), archive, "")
    assert "at least 70" in str(failure)
