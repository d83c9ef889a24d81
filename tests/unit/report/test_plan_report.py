"""The report of a plan."""

from __future__ import annotations

import math

from tsbatch.report.html_page import render
from tsbatch.report.plan_report import headline, report_of_plans
from tsbatch.simulation.batching_rules import Settings
from tsbatch.simulation.capacity_plan import Plan, Point
from tsbatch.simulation.planner import Candidate, Goal
from tsbatch.simulation.service_time import parse


def plan_of(rate, machines, *, price=None, batch_size=8):
    settings = Settings(workers=2, batch_size=batch_size, max_batch_delay=5)
    chosen = Candidate(settings=settings, service=parse("10ms"), rate=100.0)
    points = [Point(rate * share, machines, 20.0, 50.0 * share, 0.0, 3.0, machines) for share in (0.5, 1.0)]
    points.append(Point(rate * 2, machines, math.nan, math.nan, 1.0, 0.0, 2 * machines))
    return Plan(
        rate=rate,
        goal=Goal(p99=100.0),
        chosen=chosen,
        machines=machines,
        price=price,
        point=points[1],
        margin=0.25,
        down=points[0] if machines > 1 else None,
        curve=points,
        others=[],
        measured=["batches of 1 to 8 items: b.json"],
        guessed=["2 workers: they do not slow each other down"],
    )


def test_a_page_with_both_curves():
    page = render(report_of_plans([plan_of(100.0, 1, price=2.0), plan_of(1000.0, 11, price=2.0)]))
    assert "1000 requests/s within 100 ms at P99: 11 machines with 2 workers, batchSize 8, maxBatchDelay 5" in page
    assert "100 requests/s within 100 ms at P99: 1 machine with" in page
    for words in ("Latency over the rate", "Cost over the rate", "b.json", "they do not slow each other down", "25%"):
        assert words in page
    assert page.count("<svg") == 2
    assert ">44</" in page, "two machines for each of the eleven at twice the rate, at 2 each"


def test_without_a_price_machines_are_counted():
    page = render(report_of_plans([plan_of(1000.0, 11)]))
    assert "Cost over the rate" in page
    assert ">cost<" not in page


def test_a_batch_of_one_has_no_delay():
    assert "maxBatchDelay" not in headline(plan_of(10.0, 1, batch_size=1))
