"""What the figures draw are the numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.unit.report.results import make_samples
from tsbatch.bench.request_table import Samples
from tsbatch.report.charts import histogram, lines, stacked_bars
from tsbatch.report.latency_figures import bars_of, latency_split, stage_split
from tsbatch.report.request_figures import batch_sizes, distribution, over_time
from tsbatch.report.svg import Scale, from_zero, tag
from tsbatch.report.tables import ROWS, SLOWEST, raw


def numbers(svg, name, *attributes):
    """These attributes of each element of that name."""
    found = re.findall(rf"<{name} ([^>]*)>", svg)
    return [tuple(float(re.search(rf'\b{one}="([^"]*)"', element)[1]) for one in attributes) for element in found]


def test_a_bar_is_as_long_as_its_parts():
    svg = stacked_bars("label", ["a", "b"], [("one", [10, 30]), ("two", [20, 0])], "ms")
    (x1, w1), (x2, w2), (_, w3) = numbers(svg, "rect", "x", "width")
    assert w2 == pytest.approx(3 * w1, abs=0.2)
    assert w3 == pytest.approx(2 * w1, abs=0.2)
    assert x2 == pytest.approx(x1 + w1, abs=0.2)
    assert "two: b" not in svg, "nothing is drawn for nothing"


def test_columns_are_as_high_as_their_counts():
    svg = histogram("label", [0, 1, 2, 3], [1, 0, 4], unit="ms", counted="n", marks={"P50": 1.5})
    (low, high) = (height for (height,) in numbers(svg, "rect", "height"))
    assert high == pytest.approx(4 * low, abs=0.4)
    assert "P50" in svg


def test_lines_break_where_nothing_is_known():
    at = np.arange(5.0)
    svg = lines("label", at, {"a": np.array([1, 2, np.nan, 3, np.nan])}, across="s", up="ms")
    assert svg.count("<polyline") == 1, "1, 2"
    assert svg.count("<circle") == 1, "3 alone"
    assert svg.count("<circle") + svg.count("<polyline") == 2


def test_nothing_known_at_all_is_still_a_chart():
    svg = lines("label", np.arange(3.0), {"a": np.full(3, np.nan)}, across="s", up="ms")
    assert "nan" not in svg


@pytest.mark.parametrize(
    "scale, ticks",
    [
        (Scale(0, 100, 0, 1), [0, 20, 40, 60, 80, 100]),
        (Scale(0, 0.3, 0, 1), [0, 0.1, 0.2, 0.3]),
        (Scale(3, 250, 0, 1, log=True), [5, 10, 20, 50, 100, 200]),
        (Scale(36.03, 36.07, 0, 1, log=True), [36.03, 36.04, 36.05, 36.06, 36.07]),
        (Scale(0.001, 10_000, 0, 1, log=True), [0.001, 0.1, 10, 1000]),
        (Scale(5, 5, 0, 1), [5]),
    ],
)
def test_ticks_are_round_and_inside(scale, ticks):
    assert scale.ticks()[: len(ticks)] == pytest.approx(ticks)
    assert len(scale.ticks()) <= 8


def test_a_scale_from_zero_ends_at_a_round_value():
    assert from_zero(99, 0, 1).high == 100
    assert from_zero(100, 0, 1).high == 100
    assert from_zero(0.07, 0, 1).high == pytest.approx(0.08)


def test_attributes_and_texts_are_escaped():
    assert tag("text", '<"&', class_="a", aria_label='"') == '<text class="a" aria-label="&#34;">&lt;&#34;&amp;</text>'


def test_the_split_at_a_percentile_is_that_of_the_requests_around_it():
    count = 1000
    queue = np.where(np.arange(count) >= 900, 500.0, 1.0)  # the slowest tenth waited in the queue
    samples = Samples(
        sent=np.arange(count) / 10, latency=queue + 20, status=np.full(count, 200), queue=queue,
        assembly=np.full(count, 4.0), handler=np.full(count, 15.0),
    )  # fmt: skip
    rows = {row[0]: row[1:] for row in latency_split(samples).rows}
    assert rows["P50"] == [1, 4, 15, 1, 21]
    assert rows["P99"] == [500, 4, 15, 1, 520]
    assert rows["mean"][0] == pytest.approx(50.9)
    assert list(rows) == ["mean", "P50", "P90", "P95", "P99", "P99.9"]
    assert "At P99.9 the queue wait is 96%" in latency_split(samples).note


def test_percentiles_without_requests_beyond_them_are_omitted():
    assert [name for name, _ in bars_of({"a": np.ones(1)}, np.ones(1))] == ["mean"]
    assert [name for name, _ in bars_of({"a": np.ones(20)}, np.ones(20))] == ["mean", "P50", "P90", "P95"]


def test_stages_add_up_to_the_handler_time():
    samples = make_samples(500, failing=0)
    mean = stage_split(samples).rows[0]
    assert mean[-1] == pytest.approx(samples.handler.mean(), abs=0.01)
    assert stage_split(make_samples(500, told=False)) is None


def test_the_distribution_counts_every_request():
    samples = make_samples(500)
    assert sum(row[2] for row in distribution(samples).rows) == 500
    assert distribution(samples.where(samples.latency < 0)).kind == "words"


def test_batches_are_counted_not_requests():
    samples = make_samples(8, failing=0)
    samples.batch[:] = [4, 4, 4, 4, 2, 2, 1, 1]
    figure = batch_sizes(samples)
    assert [(row[0], row[2]) for row in figure.rows] == [(1, 2), (2, 1), (4, 1)]
    assert "2.00 requests per batch on average, of at most 8; 0%" in figure.note


def test_the_rate_over_time_adds_up_to_the_requests():
    samples = make_samples(2000, failing=0.1)
    rate, latency, batch = over_time(samples)
    width = rate.rows[1][0] - rate.rows[0][0]
    assert sum(row[1] for row in rate.rows) * width == pytest.approx(samples.ok.sum(), rel=0.01)
    assert sum(row[2] for row in rate.rows) * width == pytest.approx((~samples.ok).sum(), rel=0.01)
    assert latency.rows[0][1] <= latency.rows[0][2]
    half = over_time(samples, share=0.5)[0].rows
    assert sum(row[1] for row in half) * half[1][0] == pytest.approx(2 * samples.ok.sum(), rel=0.01)
    mean = 2000 / (1 / samples.batch).sum()
    assert np.mean([row[1] for row in batch.rows]) == pytest.approx(mean, rel=0.05)


def test_a_moment_is_no_line():
    samples = make_samples(5)
    samples.sent[:] = 7
    assert [part.kind for part in over_time(samples)] == ["words"]


def test_the_raw_table_has_the_slowest_and_some_of_all_times():
    samples = make_samples(5000)
    table = raw(samples)
    latency = [row[table.columns.index("latency")] for row in table.rows]
    assert len(latency) <= ROWS
    slowest = np.sort(samples.latency)[-SLOWEST:]
    assert set(np.round(slowest, 3)) <= set(latency)
    assert table.rows[0][0] == 0
    assert table.rows[-1][0] == pytest.approx(np.ptp(samples.sent), abs=0.01)
    assert raw(samples.where(samples.latency < 0)).rows == []
