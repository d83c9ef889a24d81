"""By what the number of pods is chosen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kserve import check_of, own_archive
from tsbatch.errors import UsageError
from tsbatch.kserve.archive_facts import facts_of
from tsbatch.kserve.scaling import Scaling, query, target


@pytest.fixture
def facts(tmp_path):
    mar = own_archive(tmp_path, workers=3)
    return facts_of(mar, check_of(mar, "m"))


def test_busy_workers_of_one_pod(facts):
    scaling = Scaling.parse("1:4", prometheus="http://p", busy=0.5)
    assert target(facts, scaling) == 1.5  # of three
    assert query(facts, scaling).count("[2m]") == 5
    assert query(facts, scaling).endswith(") / 1000\n")


def test_other_handlers_by_the_requests_that_wait(facts):
    scaling, other = Scaling(1, 4, "http://p"), replace(facts, emits_counters=False)
    assert target(other, scaling) == 12  # three batches of four
    assert query(other, scaling) == 'sum(rate(ts_queue_latency_microseconds{model_name="m"}[2m])) / 1e+06'


@pytest.mark.parametrize("text, least, most", [("1", 1, 1), ("3", 3, 3), ("2:8", 2, 8), ("2:2", 2, 2)])
def test_numbers_and_ranges(text, least, most):
    found = Scaling.parse(text, prometheus="http://p")
    assert (found.min_pods, found.max_pods, found.automatic) == (least, most, least < most)


@pytest.mark.parametrize("text", ["", "0", "4:1", "0:3", "a", "1:", ":3", "1:2:3", "-1", "1.5", "²"])
def test_what_is_neither(text):
    with pytest.raises(UsageError, match="expected a number, or MIN:MAX"):
        Scaling.parse(text, prometheus="http://p")


@pytest.mark.parametrize("address", ["prometheus:9090", "http://", "http:// x", "p"])
def test_what_is_no_address_of_prometheus(address):
    with pytest.raises(UsageError, match="expected an address like http://"):
        Scaling.parse("1:4", prometheus=address)


def test_a_range_needs_prometheus():
    with pytest.raises(UsageError, match="--replicas 1:4 needs --prometheus"):
        Scaling.parse("1:4")
