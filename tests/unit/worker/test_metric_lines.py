"""Metric lines as TorchServe writes them (ts/metrics) and as its frontend reads them (metrics/Metric.java)."""

from __future__ import annotations

import logging

import pytest

from tsbatch.worker.metric_lines import capture_metrics, parse_metric

LINE = "[METRICS]HandlerTime.Milliseconds:8470.9|#ModelName:m,Level:Model|#type:GAUGE|#hostname:h,1669965519,id1,id2"


def test_a_line_of_a_batch():
    metric = parse_metric(LINE)
    assert metric is not None
    assert (metric.name, metric.unit, metric.value, metric.type) == ("HandlerTime", "Milliseconds", 8470.9, "GAUGE")
    assert metric.dimensions == {"ModelName": "m", "Level": "Model"}
    assert metric.request_ids == ("id1", "id2")


def test_the_old_form_without_type_ids_and_prefix():
    metric = parse_metric("DiskAvailable.Gigabytes:311|#Level:Host|#hostname:localhost,1669965519")
    assert metric is not None
    assert (metric.value, metric.dimensions, metric.request_ids, metric.type) == (311, {"Level": "Host"}, (), "")


@pytest.mark.parametrize("value", ["1.5e-05", "-3", "0"])
def test_values_java_takes(value):
    metric = parse_metric(LINE.replace("8470.9", value))
    assert metric is not None
    assert metric.value == float(value)


@pytest.mark.parametrize("value", ["nan", "inf", "1e+16", "1,5", ""])
def test_values_java_drops(value):
    assert parse_metric(LINE.replace("8470.9", value)) is None


@pytest.mark.parametrize(
    "line", ["", "[METRICS]", "[METRICS]Failed to update metric", LINE.replace("HandlerTime", "a.b-c")]
)
def test_lines_java_drops(line):
    assert parse_metric(line) is None


@pytest.fixture
def logger():
    logger = logging.getLogger("tests.metrics")
    yield logger
    logger.setLevel(logging.NOTSET)
    logger.propagate, logger.disabled = True, False


@pytest.mark.parametrize("own,outer", [(logging.NOTSET, logging.WARNING), (logging.ERROR, logging.INFO)])
def test_capturing_whatever_the_level_and_passing_on_what_passed(own, outer, logger, caplog):
    logger.setLevel(own)
    with caplog.at_level(outer), capture_metrics(logger.name) as captured:
        logger.info(LINE)
        logger.info("[METRICS]Loss.unit:nan|#|#hostname:h,1")
        logger.error("told to all")
    assert [metric.name for metric in captured.metrics] == ["HandlerTime"]
    assert captured.dropped == ["[METRICS]Loss.unit:nan|#|#hostname:h,1"]
    assert caplog.messages == ["told to all"]
    assert (logger.level, logger.handlers, logger.propagate) == (own, [], True)


def test_a_logger_that_was_switched_off_stays_so(logger, caplog):
    logger.disabled, logger.propagate = True, False
    with capture_metrics(logger.name) as captured:
        logger.info(LINE)
    assert len(captured.metrics) == 1
    assert (logger.disabled, logger.propagate, caplog.messages) == (True, False, [])
