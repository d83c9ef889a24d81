"""What is written down of each request."""

from __future__ import annotations

import math

import pytest

from tsbatch.bench.http_client import Answer
from tsbatch.bench.request_log import NO_TIMING, PARTS, RequestLog, failure_reason, read_server_timing

TIMING = (
    b"queue;dur=41.210, assembly;dur=0.312, handler;dur=25.604, decode;dur=0.211, preprocess;dur=1.874, "
    b'inference;dur=22.950, postprocess;dur=0.101, encode;dur=0.468, batch;desc="6/8"'
)


def answer(at, status=200, body=b"", reason="", timing=b""):
    head = b"http/1.1 %d ok then\r\n" % status + (b"server-timing: %b\r\n" % timing if timing else b"")
    return Answer(at, status, head, body, reason)


def test_timings_of_tsbatch_are_read():
    told = dict(zip((*PARTS, "batch", "capacity"), read_server_timing(TIMING), strict=True))
    assert told == {
        "queue": 41.21,
        "assembly": 0.312,
        "handler": 25.604,
        "decode": 0.211,
        "preprocess": 1.874,
        "inference": 22.95,
        "postprocess": 0.101,
        "encode": 0.468,
        "batch": 6,
        "capacity": 8,
    }


@pytest.mark.parametrize("value", [b"", b"miss, cache;desc=hit, db;dur=53", b"queue;dur=1.2.3"])
def test_foreign_timings_are_ignored(value):
    assert read_server_timing(value) is NO_TIMING


def test_a_description_may_come_first():
    told = read_server_timing(b'queue;desc="a, b;dur=9";dur=1.5, batch;dur=0;desc=2/4')
    assert (told[0], told[-2:]) == (1.5, (2, 4))
    assert math.isnan(told[1])


@pytest.mark.parametrize(
    "status, body, reason",
    [
        (
            503,
            b'{"code": 503, "type": "ServiceUnavailableException", "message": "no worker"}',
            "ServiceUnavailableException: no worker",
        ),
        (400, b'{"error": {"status": 400, "code": "bad_request", "message": "no\\ninputs"}}', "bad_request: no inputs"),
        (500, b'{"error": "x"}', ""),
        (502, b"<html>", "ok then"),
        (500, b'{"message": "request 123456 of 0b7ec4a2-6a0b-4e26-9c5e-000000000001"}', "request # of #"),
    ],
)
def test_why_a_request_failed(status, body, reason):
    assert failure_reason(answer(1, status, body)) == reason
    assert failure_reason(Answer(1, 0, reason="connection closed")) == "connection closed"


@pytest.fixture
def log():
    """Begun at 100 s, measured from 102 to 112; its clock is 1000 s behind the epoch's."""
    return RequestLog(100.0, 102.0, 112.0, epoch=1000.0)


def test_what_counts_and_what_does_not(log):
    log.record(101.0, 101.0, answer(101.5), 1)  # warm-up
    log.record(101.1, 101.1, answer(101.6, 503), 1)  # warm-up, failed
    log.record(101.9, 101.9, answer(102.5), 1)  # sent in the warm-up, answered after it
    log.record(105.0, 105.001, answer(105.5, timing=TIMING), 3)
    log.record(104.0, 104.002, answer(106.0, 503), 2)
    log.record(111.0, 111.0, answer(113.0), 4)  # answered too late to count for the rate
    samples = log.samples()
    assert samples.sent.tolist() == [1104, 1105, 1111]
    assert samples.latency.tolist() == [2000, 500, 2000]
    assert samples.status.tolist() == [503, 200, 200]
    assert samples.batch.tolist()[1] == 6
    assert math.isnan(samples.batch[0])
    assert samples.items.tolist() == [2, 3, 4]
    assert (log.answered, log.items) == (2, 4)
    assert (log.warm_up, log.warm_up_failed) == (3, 1)
    assert log.last == 113
    assert log.failures() == [{"status": 503, "reason": "ok then", "count": 1}]
    assert log.lateness() == pytest.approx({"p50": 1.0, "p99": 1.98, "max": 2.0}, abs=0.001)


def test_progress_is_what_happened_since(log):
    for number in range(10):
        log.record(102, 102, answer(102.010 + number / 1000, timing=TIMING), 1)
    told = log.progress(104.0)
    assert (told.seconds, told.warm, told.done, told.failed, told.rate) == (4, True, 10, 0, 2.5)
    assert (told.batch, told.capacity) == (6, 8)
    for size in (1, 3, 3, 3):
        log.record(103, 103, answer(103.1, timing=b'batch;desc="%d/4"' % size), 1)
    assert log.progress(104.5).batch == pytest.approx(2), "one of 1 and one of 3"
    assert told.p50 == pytest.approx(15)
    assert told.p99 == pytest.approx(19)
    again = log.progress(105.0)
    assert (again.done, again.rate, again.p50) == (14, 0, None)


def test_failures_of_endless_kinds_become_few(log):
    for letter in range(200):
        log.record(103, 103, answer(104, 500, b'{"message": "%s"}' % (b"x" * (letter + 1))), 1)
    assert len(log.failures()) <= 51
    assert sum(kind["count"] for kind in log.failures()) == 200


def test_a_run_without_requests(log):
    assert len(log.samples()) == 0
    assert log.lateness() == {}
