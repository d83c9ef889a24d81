from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tsbatch.errors import UsageError
from tsbatch.tuning.objective import Figures, Goal, mean, merit, read_share, read_size, read_time, shown

FIGURES = Figures(throughput=100, p50=20, p99=50, failed=0.001, memory=3e8, requests=1000)


@pytest.mark.parametrize("text, ms", [("100ms", 100), ("100", 100), ("1.5s", 1500), (" 20 ms ", 20)])
def test_times(text, ms):
    assert read_time(text) == ms


@pytest.mark.parametrize("text, size", [("8GB", 8e9), ("512MB", 512e6), ("2GiB", 2 * 2**30)])
def test_sizes(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "ms", "-5ms", "fast", "1h", "0", "inf", "1e999"])
def test_what_is_no_time_is_said(text):
    with pytest.raises(UsageError, match="expected a time like 100ms"):
        read_time(text)


def test_what_is_no_time_is_said_with_its_option():
    with pytest.raises(UsageError, match=r"^--p99 is soon; expected a time like 100ms or 1\.5s$"):
        read_time("soon", "--p99")


@pytest.mark.parametrize("text", ["8", "8 elephants", "-1GB"])
def test_what_is_no_size_is_said(text):
    with pytest.raises(UsageError, match="expected a size like 8GB"):
        read_size(text)


@pytest.mark.parametrize("text, share", [("80%", 0.8), (" 80 % ", 0.8), ("100", 1.0), ("0.5%", 0.005)])
def test_shares_are_read(text, share):
    assert read_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["101%", "0", "-5%", "20GB", "nan", ""])
def test_what_is_no_share_is_said(text):
    with pytest.raises(UsageError, match="expected a share like 80%"):
        read_share(text)


class TestGoal:
    def test_the_worst_broken_limit_comes_first(self):
        goal = Goal(p99=40, memory=1e8)
        assert goal.broken(FIGURES) == ["memory", "p99"]
        assert goal.aim([FIGURES]) == "memory"

    def test_when_no_limit_is_broken_the_objective_counts(self):
        assert Goal(objective="p50", p99=50).aim([FIGURES]) == "p50"

    def test_memory_that_nobody_knows_breaks_nothing(self):
        assert Goal(memory=1).broken(Figures(throughput=1, p50=1, p99=1)) == []

    def test_memory_of_a_gpu_is_a_limit_of_its_own(self):
        goal, one = Goal(gpu_memory=0.5), Figures(throughput=1, p50=1, p99=1, memory=3e10, gpu_memory=0.6)
        assert goal.broken(one) == ["gpu_memory"]
        assert merit(one, "gpu_memory") < merit(replace(one, gpu_memory=0.4), "gpu_memory")
        assert mean([one, replace(one, gpu_memory=0.4), replace(one, gpu_memory=None)]).gpu_memory == 0.5
        assert str(goal) == "more requests/s, failed at most 1 %, GPU memory at most 50 %"

    def test_some_of_each_gpu_stays_free_without_a_word(self):
        assert Goal().broken(Figures(throughput=1, p50=1, p99=1, gpu_memory=0.91)) == ["gpu_memory"]
        assert Goal().broken(Figures(throughput=1, p50=1, p99=1, gpu_memory=0.89)) == []
        assert str(Goal()) == "more requests/s, failed at most 1 %"

    def test_it_is_said_in_words(self):
        assert (
            str(Goal(p99=100, memory=8e9))
            == "more requests/s, failed at most 1 %, memory at most 8000 MB, P99 at most 100 ms"
        )


def test_merit_grows_with_rate_and_falls_with_latency():
    twice = Figures(throughput=200, p50=40, p99=100, failed=0.001, requests=1000)
    assert merit(twice, "throughput") - merit(FIGURES, "throughput") == pytest.approx(math.log(2))
    assert merit(twice, "p99") - merit(FIGURES, "p99") == pytest.approx(-math.log(2))


def test_no_failure_at_all_is_better_than_one_and_not_infinitely():
    none = Figures(throughput=1, p50=1, p99=1, failed=0, requests=1000)
    one = Figures(throughput=1, p50=1, p99=1, failed=0.001, requests=1000)
    assert 0.5 < merit(none, "failed") - merit(one, "failed") < 2


def test_the_mean_of_rates_is_the_geometric_one():
    runs = [Figures(throughput=rate, p50=1, p99=rate, failed=failed) for rate, failed in ((100, 0), (400, 0.5))]
    assert mean(runs).throughput == pytest.approx(200)
    assert mean(runs).failed == 0.25
    assert mean(runs).memory is None


def test_figures_are_shown_with_their_units():
    assert shown("p99", 12.345) == "12.3 ms"
    assert shown("memory", 3e8) == "300 MB"
    assert shown("failed", 0.0015) == "0.15 %"
    assert shown("throughput", 1234.5) == "1234"
