"""``compare`` on simulated pairs whose true effect is known.

Runs of the same thing differ by 5 %, and inside a run neighbours are alike. Percentiles and intervals are held against
NumPy and SciPy in tests/unit/bench/test_statistics.py, which belongs to this line too.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from tests.unit.bench.pairs import latencies, pair, run_of
from tsbatch.bench.comparison import EFFECT, LEVEL, compare, repeats_for
from tsbatch.bench.summary import summarize

PAIRS: Final = 100
DRIFT: Final = 0.05
REQUESTS: Final = 5000
FIGURES: Final = 3


@pytest.fixture(scope="module")
def repeats() -> int:
    """What compare itself says it takes, from the spread of runs: of the figure that needs fewest, and one more."""
    random = np.random.default_rng(1)
    runs = [run_of(latencies(random, REQUESTS, math.exp(random.normal(0, DRIFT)))) for _ in range(300)]
    spread = float(np.std([math.log(run.summary["rate"]) for run in runs], ddof=1))
    needed = repeats_for(spread, math.log(EFFECT), LEVEL / FIGURES)
    assert needed is not None
    return needed + 1


def verdicts(seed: int, repeats: int, shift: float, **machine: float) -> Counter[str]:
    random = np.random.default_rng(seed)
    found: Counter[str] = Counter()
    for _ in range(PAIRS):
        a, b = pair(random, repeats, shift, drift=DRIFT, n=REQUESTS, **machine)
        found[compare(a, b).verdict] += 1
    return found


def test_equal_ones_are_within_the_noise(repeats, record_property):
    found = verdicts(2, repeats, 1.0)
    record_property("repeats", repeats)
    record_property("equal_pairs_within_the_noise", found["within the noise"])
    assert found["within the noise"] >= 95


@pytest.mark.parametrize("shift, verdict", [(EFFECT, "worse"), (1 / EFFECT, "better")])
def test_ten_percent_are_found(repeats, record_property, shift, verdict):
    found = verdicts(3, repeats, shift)
    record_property(f"pairs_10_percent_{verdict}_found", found[verdict])
    assert found[verdict] >= 90


def test_a_machine_that_wanders_makes_no_difference_to_runs_that_took_turns(repeats, record_property):
    found = verdicts(4, repeats, 1.0, wander=0.02)
    record_property("equal_pairs_within_the_noise_on_a_wandering_machine", found["within the noise"])
    assert found["within the noise"] >= 95


@pytest.mark.parametrize("repeats", [2, 3, 5, 10])
def test_few_repeats_find_less_but_do_not_lie(record_property, repeats):
    equal, shifted = verdicts(5, repeats, 1.0), verdicts(6, repeats, EFFECT)
    record_property(f"with_{repeats}_repeats_equal_within_the_noise", equal["within the noise"])
    record_property(f"with_{repeats}_repeats_10_percent_found", shifted["worse"])
    assert equal["within the noise"] >= 95
    assert shifted["better"] <= 2


def test_single_runs_cannot_tell(record_property):
    random = np.random.default_rng(7)
    a, b = pair(random, 1, 2.0)
    assert compare(a, b).verdict == "cannot tell"


def test_the_real_summary_gives_the_same_figures():
    """The pairs are made with percentiles alone, which is quicker; a whole summary must not change them."""
    random = np.random.default_rng(8)
    a, b = pair(random, 4, EFFECT)
    whole = [
        replace(result, runs=[replace(run, summary=summarize(run, limit=None, timeout=30.0)) for run in result.runs])
        for result in (a, b)
    ]
    plain, real = compare(a, b), compare(*whole)
    for one, other in zip(plain.changes, real.changes, strict=True):
        assert one.figure == other.figure
        assert one.ratio == pytest.approx(other.ratio, rel=1e-4)
