from __future__ import annotations

import importlib
import sys
import time

import pytest

from tsbatch.check.phases import IMPORT, PhaseClock


@pytest.fixture
def events():
    return []


@pytest.fixture
def clock(events):
    return PhaseClock(lambda event, name: events.append((event, name)))


def slow_module(folder, name, seconds=0.05):
    (folder / f"{name}.py").write_text(f"import time; time.sleep({seconds})")


def test_a_phase_inside_another_counts_once(clock, events):
    with clock.phase("outer"):
        time.sleep(0.02)
        with clock.phase("inner"):
            time.sleep(0.05)
    assert list(clock.seconds) == ["outer", "inner"]
    assert 0.02 <= clock.seconds["outer"] < 0.045
    assert clock.seconds["inner"] >= 0.05
    assert events == [("begin", "outer"), ("begin", "inner"), ("end", "inner"), ("end", "outer")]


def test_a_phase_that_raises_has_failed(clock, events):
    with pytest.raises(ZeroDivisionError), clock.phase("weights"):
        raise ZeroDivisionError
    assert events == [("begin", "weights"), ("failed", "weights")]
    with clock.phase("next"):
        pass
    assert clock.seconds["weights"] >= 0


def test_importing_is_a_phase_of_its_own_wherever_it_happens(clock, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("slow_one", "slow_two"):
        slow_module(tmp_path, name)
    with clock.watching_imports(), clock.phase("weights"):
        importlib.import_module("slow_one")
        __import__("slow_two")
    assert clock.seconds[IMPORT] >= 0.1
    assert clock.seconds["weights"] < 0.05
    for name in ("slow_one", "slow_two"):
        del sys.modules[name]


def test_imports_are_left_alone_afterwards(clock):
    before = importlib._bootstrap._find_and_load
    with clock.watching_imports():
        assert importlib._bootstrap._find_and_load is not before
    assert importlib._bootstrap._find_and_load is before
