from __future__ import annotations

import time

from tsbatch.system.polling import wait_until


def test_the_first_true_result_is_returned():
    results = iter([None, 0, "ready", "later"])
    assert wait_until(lambda: next(results), 10, interval=0) == "ready"


def test_the_last_false_result_is_returned_when_the_time_is_up():
    started = time.monotonic()
    assert wait_until(lambda: "", 0.05, interval=0.01) == ""
    assert time.monotonic() - started >= 0.05


def test_without_time_the_condition_is_checked_once():
    calls = []
    assert wait_until(lambda: calls.append(1), 0) is None
    assert len(calls) == 1
