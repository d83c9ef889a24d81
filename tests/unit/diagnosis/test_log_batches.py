# ruff: noqa: E501 - the lines of a log are as long as they are
from __future__ import annotations

import math

import pytest

from tests.unit.diagnosis.log_lines import NOON_MS, answered, as_bytes, flushing, refused, told
from tsbatch.diagnosis.log_batches import Batch, BatchReader, Refused

# Two batches of a real TorchServe 0.12.0; the second begins when the first has ended.
REAL = b"""\
2026-11-29T21:20:16,680 [DEBUG] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: 1795987216680
2026-11-29T21:20:16,680 [DEBUG] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: 1795987216680
2026-11-29T21:20:16,680 [INFO ] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.WorkerThread - Looping backend response at: 1795987216680
2026-11-29T21:20:16,680 [INFO ] W-9039-padded-w2_1.0-stdout MODEL_LOG - Backend received inference at: 1795987216
2026-11-29T21:20:16,691 [INFO ] W-9039-padded-w2_1.0-stdout org.pytorch.serve.wlm.WorkerLifeCycle - result=[METRICS]PredictionTime.Milliseconds:10.69|#ModelName:padded-w2,Level:Model|#type:GAUGE|#hostname:vm,1795987216,aa0b9982-264f-4567-b83b-205a8ab6523e, pattern=[METRICS]
2026-11-29T21:20:16,691 [INFO ] W-9039-padded-w2_1.0-stdout MODEL_METRICS - PredictionTime.ms:10.69|#ModelName:padded-w2,Level:Model|#hostname:vm,requestID:aa0b9982-264f-4567-b83b-205a8ab6523e,timestamp:1795987216
2026-11-29T21:20:16,691 [INFO ] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId aa0b9982-264f-4567-b83b-205a8ab6523e
2026-11-29T21:20:16,691 [INFO ] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId aa0b9982-264f-4567-b83b-205a8ab6523e
2026-11-29T21:20:16,691 [INFO ] W-9039-padded-w2_1.0 ACCESS_LOG - /127.0.0.1:52182 "POST /predictions/padded-w2 HTTP/1.1" 200 17
2026-11-29T21:20:16,691 [INFO ] W-9039-padded-w2_1.0 TS_METRICS - ts_queue_latency_microseconds.Microseconds:5144.027|#model_name:padded-w2,model_version:default|#hostname:vm,timestamp:1795987216
2026-11-29T21:20:16,691 [DEBUG] W-9039-padded-w2_1.0 org.pytorch.serve.job.RestJob - Waiting time ns: 5144027, Backend time ns: 12033625
2026-11-29T21:20:16,691 [DEBUG] W-9039-padded-w2_1.0 org.pytorch.serve.job.RestJob - Waiting time ns: 5144027, Backend time ns: 12033625
2026-11-29T21:20:16,691 [INFO ] W-9039-padded-w2_1.0 TS_METRICS - QueueTime.Milliseconds:5.0|#Level:Host|#hostname:vm,timestamp:1795987216
2026-11-29T21:20:16,691 [INFO ] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.WorkerThread - Backend response time: 11
2026-11-29T21:20:16,697 [DEBUG] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: 1795987216697
2026-11-29T21:20:16,726 [INFO ] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId f87b0af5-0028-4db2-a869-2e07d8e8f98e
2026-11-29T21:20:16,726 [DEBUG] W-9039-padded-w2_1.0 org.pytorch.serve.job.RestJob - Waiting time ns: 9136181, Backend time ns: 29089847
2026-11-29T21:20:16,900 [DEBUG] W-9039-padded-w2_1.0 org.pytorch.serve.wlm.WorkerThread - W-9039-padded-w2_1.0 State change null -> WORKER_STOPPED
""".splitlines()


def read(*lines):
    reader = BatchReader()
    return [*reader.feed(as_bytes(*lines)), *reader.finish()]


def waits(batch):
    return {job.id: tuple(round(wait, 3) for wait in batch.waits(job)) for job in batch.jobs}


def test_lines_of_a_real_server():
    reader = BatchReader()
    first, second = [*reader.feed(REAL), *reader.finish()]
    assert (first.model, first.version, first.worker) == ("padded-w2", "1.0", "W-9039-padded-w2_1.0")
    assert [(job.id[:8], job.waited, job.took, job.status) for job in first.jobs] == [
        ("aa0b9982", 5.144027, 12.033625, 200)
    ]
    assert first.handler == 10.69
    assert first.flushed == 1795987216680
    # The worker was busy until ...680 + 12.03; the second arrived at ...697 - 9.14, before that.
    assert first.ended == pytest.approx(1795987216692.033625)
    assert second.waits(second.jobs[0]) == pytest.approx((692.034 - 687.864, 697 - 692.034), abs=0.001)
    assert math.isnan(second.handler)


def test_without_a_previous_batch_a_batch_begins_with_its_first_arrival():
    (batch,) = read(flushing(100), told(140, "abc", "38.5"), answered(141, "a", 60, 40), answered(141, "b", 20, 41))
    assert waits(batch) == {"a": (0, 60), "b": (0, 20)}
    assert batch.handler == 38.5


def test_while_a_worker_computes_requests_queue():
    _, batch = read(
        flushing(100),
        answered(141, "a", 0, 50),  # the worker is free at 150
        flushing(160),
        answered(200, "b", 40, 40),  # came at 120
        answered(200, "c", 5, 40),  # came at 155
    )
    assert waits(batch) == {"b": (30, 10), "c": (0, 5)}


def test_while_another_worker_fills_its_batch_requests_queue():
    # Worker 9001 is free all the time, but until 130 the other one takes what comes.
    batches = read(
        flushing(130, worker=9000),
        flushing(150, worker=9001),
        answered(160, "a", 30, 30, worker=9000),
        answered(160, "b", 40, 10, worker=9001),  # came at 110
    )
    assert [waits(batch) for batch in batches] == [{"a": (0, 30)}, {"b": (20, 20)}]


def test_another_model_or_version_does_not_delay_a_batch():
    for other in ("n_1.0", "m_2.0"):
        batches = read(
            flushing(130, worker=9000, model=other),
            flushing(150, worker=9001),
            answered(160, "a", 30, 30, worker=9000, model=other),
            answered(160, "b", 40, 10, worker=9001),
        )
        assert [waits(batch) for batch in batches] == [{"a": (0, 30)}, {"b": (0, 40)}]


def test_lines_of_two_workers_interleave_and_come_twice():
    one = [*flushing(100), *answered(140, "a", 5, 40)]
    other = [*flushing(101, worker=9001), *answered(141, "b", 6, 40, worker=9001)]
    batches = read([line for pair in zip(one, other, strict=True) for line in pair])
    assert sorted((batch.worker, [job.id for job in batch.jobs]) for batch in batches) == [
        ("W-9000-m_1.0", ["a"]),
        ("W-9001-m_1.0", ["b"]),
    ]


def test_the_thread_of_the_workers_output_writes_between_two_copies_of_a_line():
    lines = [*flushing(100), *answered(140, "a", 5, 40), *answered(140, "b", 4, 40)]
    between = told(140, "ab", "39")
    for place in range(1, len(lines) + 1):
        (batch,) = read(lines[:place], between, lines[place:])
        assert ([job.id for job in batch.jobs], batch.handler) == (["a", "b"], 39), place


def test_java_writes_large_numbers_with_an_exponent():
    (batch,) = read(flushing(0), told(10, "a", "1.2345678E7"), answered(10, "a", 1, 12_345_679))
    assert batch.handler == 12345678


def test_handler_time_is_preferred_and_another_batchs_is_not_taken():
    both = read(
        flushing(0),
        told(1, "a", "39"),
        told(1, "a", "40", name="PredictionTime"),
        answered(10, "a", 1, 41),
        flushing(50),
        told(51, "x", "7"),
        answered(60, "b", 1, 41),
    )
    assert [batch.handler for batch in both][:1] == [39]
    assert math.isnan(both[1].handler)


def test_a_handler_time_logged_during_the_next_batch():
    batches = read(
        flushing(0),
        answered(10, "a", 1, 10),
        flushing(10),
        told(10, "a", "9"),
        told(10, "a", "9.5", name="PredictionTime"),
        told(20, "b", "8"),
        answered(20, "b", 1, 10),
        flushing(20),
        answered(30, "c", 1, 10),
        flushing(30),
        answered(40, "d", 1, 10),
        told(41, "d", "7"),
    )
    assert [batch.handler for batch in batches if batch.jobs[0].id != "c"] == [9, 8, 7]
    assert sorted(job.id for batch in batches for job in batch.jobs) == ["a", "b", "c", "d"]


def test_a_missing_handler_time_does_not_block_later_batches():
    reader = BatchReader()
    lines = [[*flushing(20 * number), *answered(20 * number + 9, str(number), 1, 9)] for number in range(20)]
    found = [one for group in lines for one in reader.feed(as_bytes(group))]
    assert [one.jobs[0].id for one in found] == [str(number) for number in range(11)]
    assert len([*reader.finish()]) == 9


def test_prometheus_mode_leaves_the_workers_own_line_only():
    line = (
        "2026-11-29T12:00:00,010 [INFO ] W-9000-m_1.0-stdout org.pytorch.serve.wlm.WorkerLifeCycle - result=[METRICS]"
        "HandlerTime.Milliseconds:40.5|#ModelName:m,Level:Model|#type:GAUGE|#hostname:vm,1795987970,a,b, pattern=[METRICS]"
    )
    (batch,) = read(flushing(0), [line, line], answered(10, "b", 1, 41), answered(10, "a", 1, 41))
    assert batch.handler == 40.5


def test_a_failed_batch_counts_from_the_arrival():
    error = "2026-11-29T12:00:00,050 [DEBUG] W-9000-m_1.0 org.pytorch.serve.job.RestJob - Waiting time ns: 5000000, Inference time ns: 45000000"
    (batch,) = read(flushing(0), [error])
    (job,) = batch.jobs
    assert (job.status, job.waited, job.took) == (500, 5, 40)


def test_status_comes_from_the_access_log_and_of_one_request_only():
    (batch,) = read(flushing(0), answered(9, "a", 1, 9, status=400), answered(9, "b", 1, 9))
    assert [job.status for job in batch.jobs] == [400, 200]


def test_grpc_has_words_for_statuses_or_none():
    failed = [line.replace('" 200 ', '" INTERNAL ') for line in answered(9, "a", 1, 9)]
    none = [line for line in answered(9, "b", 1, 9) if "ACCESS_LOG" not in line]
    good = [line.replace('" 200 ', '" OK ') for line in answered(9, "c", 1, 9)]
    (batch,) = read(flushing(0), failed, none, good)
    assert [job.status for job in batch.jobs] == [500, 200, 200]


def test_a_stream_is_one_request_of_several_parts():
    part = "2026-11-29T12:00:00,009 [INFO ] W-9000-m_1.0 org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId a"
    (batch,) = read(
        flushing(0, command="STREAMPREDICT"), [part, part, part.replace("009", "015")], answered(20, "a", 1, 20)
    )
    assert [(job.id, job.took) for job in batch.jobs] == [("a", 20)]


def test_loading_and_older_versions():
    old = "2026-11-29T12:00:00,000 [INFO ] W-9000-m_1.0 org.pytorch.serve.wlm.WorkerThread - Flushing req. to backend at: {}"
    batches = read(flushing(-500, command="LOAD"), [old.format(NOON_MS)], answered(9, "a", 1, 9))
    assert [[job.id for job in batch.jobs] for batch in batches] == [["a"]]


def test_a_log_that_begins_in_the_middle_of_a_batch():
    assert read(answered(9, "a", 1, 9)) == []


def test_refused_requests_and_their_moment_in_any_time_zone():
    lines = [*flushing(0), *answered(9, "a", 1, 9), *flushing(10, worker=9001, model="n_3.1")]
    lines += [
        *refused(20),
        *refused(25, path="/v1/models/n:predict"),
        *refused(30, path="/v2/models/m/versions/2.0/infer"),
    ]
    expected = [
        Refused("m", "1.0", NOON_MS + 20, 2, 503),
        Refused("n", "3.1", NOON_MS + 25, 2, 503),
        Refused("m", "2.0", NOON_MS + 30, 2, 503),
    ]
    for zone in ("T12:", "T07:"):
        found = read([line.replace("T12:", zone) for line in lines])
        assert [one for one in found if isinstance(one, Refused)] == expected


def test_other_calls_are_no_refusals():
    calls = [*refused(1, path="/ping"), *refused(2, status=200), *refused(3, path="/models/m")]
    calls += refused(4, path="/predictions/no-such-model", status=404)
    assert read(flushing(0), calls) == []


def test_lines_that_are_no_log_lines_are_passed_over():
    noise = [
        "",
        "######",
        "TorchServe now enforces token authorization by default.",
        "\tat org.pytorch.serve.X(X.java:1)",
    ]
    (batch,) = read(noise, flushing(0), noise, answered(9, "a", 1, 9))
    assert isinstance(batch, Batch)
