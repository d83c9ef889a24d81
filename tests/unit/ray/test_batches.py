"""What becomes of requests between Ray's batching and the handler."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from tests.unit.ray.replica_side import Doubles, batches_of, loaded
from tsbatch.protocol.request import Request


def numbers(*values):
    return [Request.of(value) for value in values]


async def answers(batches, requests, deadline=None):
    return await asyncio.gather(*(batches.answer(request, deadline) for request in requests))


def bodies(replies):
    return [json.loads(reply.body) for reply in replies]


def test_requests_that_come_together_share_a_batch():
    batches = batches_of(loaded(Doubles()))
    replies = asyncio.run(answers(batches, numbers(1, 2, 3)))
    assert bodies(replies) == [2, 4, 6]
    assert batches.handler.seen == [3]
    assert 'batch;desc="3/4"' in replies[0].headers["Server-Timing"]
    assert batches.metrics.counts[("BatchRequests",)] == 3
    assert batches.metrics.gauges["HandlerTime"] > 0


def test_what_gathers_while_the_handler_is_busy_is_one_batch():
    handler = loaded(Doubles())
    handler.slow = 0.2
    batches = batches_of(handler)

    async def one_by_one():
        tasks = []
        for value in range(6):  # as Ray's batching hands them over when each delay is over
            tasks.append(asyncio.create_task(batches.answer(Request.of(value))))
            await asyncio.sleep(0.02)
        return await asyncio.gather(*tasks)

    assert bodies(asyncio.run(one_by_one())) == [0, 2, 4, 6, 8, 10]
    assert handler.seen == [1, 4, 1]


def test_the_event_loop_goes_on_while_a_batch_is_computed():
    handler = loaded(Doubles())
    handler.slow = 0.3
    batches = batches_of(handler)

    async def watch():
        task = asyncio.create_task(batches.answer(Request.of(1)))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.01)
            turns += 1
        return turns

    assert asyncio.run(watch()) > 10


def test_one_bad_request_hurts_nobody_else():
    batches = batches_of(loaded(Doubles()))
    replies = asyncio.run(answers(batches, numbers(1, "a word", 3)))
    assert [reply.status for reply in replies] == [200, 500, 200]
    assert bodies(replies)[::2] == [2, 6]
    assert batches.metrics.counts[("FailedRequests", "handler_failed")] == 1


def test_a_deadline_that_has_passed_is_a_504_and_nothing_is_computed():
    batches = batches_of(loaded(Doubles()))
    (reply,) = asyncio.run(answers(batches, numbers(1), time.time() - 5))
    assert reply.status == 504
    error = json.loads(reply.body)["error"]
    assert error["code"] == "deadline_exceeded"
    assert not hasattr(batches.handler, "seen")
    assert batches.metrics.counts == {("FailedRequests", "deadline_exceeded"): 1}


def test_a_deadline_that_passes_in_the_queue_is_a_504_too():
    handler = loaded(Doubles())
    handler.slow = 0.3
    batches = batches_of(handler)

    async def busy():
        first = asyncio.create_task(batches.answer(Request.of(1)))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(batches.answer(Request.of(2), time.time() + 0.1))
        third = asyncio.create_task(batches.answer(Request.of(3), time.time() + 60))
        return [reply.status for reply in await asyncio.gather(first, second, third)]

    assert asyncio.run(busy()) == [200, 504, 200]
    assert handler.seen == [1, 1]


def test_the_error_is_in_the_protocol_of_the_request():
    batches = batches_of(loaded(Doubles()))
    v2 = {"id": "7", "inputs": [{"name": "a", "datatype": "FP32", "shape": [1], "data": [1.0]}]}
    replies = asyncio.run(answers(batches, numbers(v2, {"instances": [1]}), time.time() - 5))
    assert [reply.status for reply in replies] == [504, 504]
    assert json.loads(replies[0].body)["id"] == "7"
    assert isinstance(json.loads(replies[0].body)["error"], str)
    assert set(json.loads(replies[1].body)) == {"error"}
    assert isinstance(json.loads(replies[1].body)["error"], str)


def test_a_client_that_has_gone_is_not_computed_for():
    handler = loaded(Doubles())
    handler.slow = 0.2
    batches = batches_of(handler)

    async def leave():
        first = asyncio.create_task(batches.answer(Request.of(1)))
        second = asyncio.create_task(batches.answer(Request.of(2)))
        await asyncio.sleep(0.01)
        third = asyncio.create_task(batches.answer(Request.of(3)))
        await asyncio.sleep(0.01)
        third.cancel()
        return await asyncio.gather(first, second)

    assert bodies(asyncio.run(leave())) == [2, 4]
    assert sum(handler.seen) == 2


@pytest.fixture
def hanging():
    """A handler that hangs until the test is over."""
    over = threading.Event()

    class Hangs(Doubles):
        def inference(self, tensors):
            over.wait(10)
            return super().inference(tensors)

    handler = loaded(Hangs())
    yield handler
    over.set()


def test_a_batch_that_hangs_ends_the_replica_and_keeps_nobody_waiting(hanging):
    batches = batches_of(hanging, batch_size=1, response_timeout=0.2)

    async def all_of_them():
        first = asyncio.create_task(batches.answer(Request.of(1)))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(batches.answer(Request.of(2)))
        in_time = await asyncio.wait_for(asyncio.gather(first, second), 5)
        return [*in_time, await asyncio.wait_for(batches.answer(Request.of(3)), 5)]

    replies = asyncio.run(all_of_them())
    assert [reply.status for reply in replies] == [504, 503, 503]
    assert [reply.headers.get("Retry-After") for reply in replies] == [None, "1", "1"]
    assert batches.overdue
    assert json.loads(replies[0].body)["error"]["code"] == "response_timeout"


def test_a_bug_in_the_loop_is_an_answer_too(monkeypatch, caplog):
    batches = batches_of(loaded(Doubles()))
    monkeypatch.setattr(batches.handler, "run_batch", lambda requests, sink: 1 / 0)
    replies = asyncio.run(answers(batches, numbers(1, 2)))
    assert [reply.status for reply in replies] == [500, 500]
    assert "bug in tsbatch" in caplog.text


def test_metrics_that_fail_cost_no_answer(monkeypatch, caplog):
    batches = batches_of(loaded(Doubles()))
    monkeypatch.setattr(batches.metrics, "count", lambda *_: 1 / 0)
    assert bodies(asyncio.run(answers(batches, numbers(4)))) == [8]
    assert "could not be emitted" in caplog.text


def test_waits_come_from_the_arrival():
    batches = batches_of(loaded(Doubles()), gather_seconds=0.05)
    request = Request.of(1)
    request.arrival = time.time()
    (reply,) = asyncio.run(answers(batches, [request]))
    entries = dict(entry.split(";dur=") for entry in reply.headers["Server-Timing"].split(", ") if "dur=" in entry)
    assert float(entries["queue"]) == 0
    assert float(entries["assembly"]) >= 50
