"""Better, worse or within the noise, on pairs whose true effect is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tests.unit.bench.pairs import latencies, pair, result_of, run_of, with_starts
from tsbatch.bench.comparison import LEVEL, compare, figures_of, overall, power, repeats_for, welch
from tsbatch.errors import UsageError


def runs_of(random, factors, **options):
    return [run_of(latencies(random, 2000, factor), minute=place, **options) for place, factor in enumerate(factors)]


@pytest.fixture
def random():
    return np.random.default_rng(7)


def test_the_interval_is_that_of_scipys_welch(random):
    a, b = pair(random, 6, 1.1)
    b = replace(b, runs=b.runs[:4])
    (rate, *_) = compare(a, b).changes
    logs = [np.log([run.summary["rate"] for run in result.runs]) for result in (a, b)]
    theirs = stats.ttest_ind(logs[1], logs[0], equal_var=False).confidence_interval(1 - LEVEL / 3)
    assert rate.figure == "requests/s"
    assert (math.log(rate.low), math.log(rate.high)) == pytest.approx((theirs.low, theirs.high), rel=1e-6)
    assert rate.ratio == pytest.approx(math.exp(logs[1].mean() - logs[0].mean()))


def test_the_power_is_what_a_simulation_finds(random):
    spread, runs, effect, level = 0.05, 8, 0.07, 0.02
    samples = random.normal(0, spread, (20_000, 2, runs))
    found = stats.ttest_ind(samples[:, 0] + effect, samples[:, 1], axis=1, equal_var=False).pvalue < level
    assert power(effect, *welch(spread, runs, spread, runs), level) == pytest.approx(found.mean(), abs=0.01)


def test_the_repeats_for_ten_percent_are_the_fewest(random):
    needed = repeats_for(0.05, math.log(1.1), LEVEL / 3)
    assert needed == 11
    assert power(math.log(1.1), *welch(0.05, needed - 1, 0.05, needed - 1), LEVEL / 3) < 0.9
    assert repeats_for(3.0, math.log(1.1), LEVEL) is None


def test_equal_ones_are_within_the_noise_and_a_shift_is_found(random):
    equal = [compare(*pair(random, 16, n=5000)).verdict for _ in range(40)]
    worse = [compare(*pair(random, 16, 1.1, n=5000)).verdict for _ in range(40)]
    better = [compare(*pair(random, 16, 1 / 1.1, n=5000)).verdict for _ in range(20)]
    assert equal.count("within the noise") >= 38
    assert worse.count("worse") >= 36
    assert better.count("better") >= 18
    assert "better" not in worse
    assert "worse" not in better


def test_a_single_run_cannot_tell(random):
    a, b = pair(random, 3, 2.0)
    single = replace(b, runs=b.runs[:1])
    found = compare(a, single)
    assert found.verdict == "cannot tell"
    assert found.runs == (3, 1)
    assert all(change.low is None for change in found.changes)
    assert found.changes[0].ratio == pytest.approx(0.5, rel=0.3)


def test_detectable_changes_are_reported(random):
    found = compare(*pair(random, 12))
    for change in found.changes:
        assert 1.03 < change.visible < 1.3
        assert 3 < change.repeats < 60


def test_failures_are_worse_even_when_answers_are_faster(random):
    a = result_of(runs_of(random, [1.0] * 4))
    b = result_of(runs_of(random, [0.5] * 4, failed=200))
    found = compare(a, b)
    failed = found.changes[-1]
    assert (failed.figure, failed.verdict, failed.before, failed.after) == ("failed", "worse", 0.0, 0.1)
    assert found.verdict == "worse"
    assert [change.verdict for change in found.changes[:-1]] == ["better"] * 3


def test_a_single_failure_in_thousands_is_no_regression(random):
    a = result_of(runs_of(random, [1.0] * 4))
    b = result_of([*runs_of(random, [1.0] * 3), run_of(latencies(random, 2000, 1.0), failed=1)])
    assert compare(a, b).changes[-1].verdict == "within the noise"


def test_an_open_loops_rate_is_no_merit(random):
    runs = runs_of(random, [1.0, 1.0])
    assert [figure.name for figure in figures_of("open", runs, runs)] == ["P50 ms", "P99 ms"]
    good = [replace(run, summary={**run.summary, "goodput": {"rate": 3.0}}) for run in runs]
    assert [figure.name for figure in figures_of("open", good, good)] == ["goodput/s", "P50 ms", "P99 ms"]


def test_other_settings_loads_machines_and_order_are_named(random):
    a, b = pair(random, 3)
    b = replace(result_of(b.runs, batchSize=16), environment={"cpu": "y", "cores": 2})
    b = replace(with_starts(b, 10), plan={**b.plan, "seconds": 20})
    found = compare(a, b)
    assert found.settings == ["batchSize: 8 -> 16"]
    assert found.notes[0] == "the loads differ: seconds: 10 -> 20"
    assert found.notes[1] == "the machines differ: cpu: x -> y"
    assert found.notes[2].startswith("all runs of one came before those of the other")
    assert compare(*pair(random, 3)).notes == []


def test_nothing_in_common_is_an_error(random):
    a, b = pair(random, 2)
    other = replace(b, runs=[replace(run, step=16.0) for run in b.runs])
    with pytest.raises(UsageError, match="no load in common: closed loop at 8, and closed loop at 8"):
        compare(a, other)
    with pytest.raises(UsageError, match="no load in common"):
        compare(a, replace(b, plan={**b.plan, "loop": "open"}))


def test_the_verdict_on_everything():
    assert overall(["better", "within the noise", "worse"]) == "worse"
    assert overall(["better", "within the noise"]) == "better"
    assert overall(["within the noise"]) == overall([]) == "within the noise"
    assert overall(["cannot tell", "worse"]) == "cannot tell"


def test_it_has_a_json_form(random):
    value = json.loads(json.dumps(compare(*pair(random, 3)).to_json()))
    assert (value["schema"], value["kind"]) == (1, "comparison")
    assert value["changes"][0]["figure"] == "requests/s"
