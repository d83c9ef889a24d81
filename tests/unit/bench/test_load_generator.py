"""The load generator, in this process, against servers that behave in known ways."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

import numpy as np
import pytest

from tests.unit.bench.support import OK, read_request, serving
from tsbatch.bench.http_client import Address
from tsbatch.bench.load_generator import Generator, Load
from tsbatch.bench.request_bodies import JSON, Body
from tsbatch.bench.send_times import Arrivals, punctual_loop
from tsbatch.errors import ServerError, UsageError

BODIES = (Body(b'"a"', JSON, 1), Body(b'["a","b"]', JSON, 2))


def loaded(handle, tell=None, **options):
    """What a load on a server gave whose connections ``handle`` serves."""

    async def work():
        async with serving(handle) as port:
            load = Load(address=Address("127.0.0.1", port, False, "/x"), **{"bodies": BODIES, **options})
            return await Generator(load, tell).run()

    loop = punctual_loop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


def answering(raw=OK, seconds=0.0, seen=None):
    """Handles connections: each request is answered after ``seconds``."""

    async def handle(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head, body = await read_request(reader)
                if seen is not None:
                    seen.append((head, body, time.time()))
                if seconds:
                    await asyncio.sleep(seconds)
                writer.write(raw)

    return handle


def test_a_closed_loop_keeps_so_many_requests_on_their_way():
    outcome = loaded(answering(seconds=0.02), clients=4, seconds=0.5, warm_up=0.1)
    # Each client is answered 50 times a second at most; on a busy machine less.
    assert 80 < outcome.answered / outcome.seconds <= 200
    assert outcome.seconds == pytest.approx(0.5)
    assert outcome.generator["connections"] == 4
    assert outcome.generator["reconnects"] == 0
    assert 8 <= outcome.warm_up["requests"] <= 28
    assert 20 <= np.median(outcome.samples.latency) < 40
    assert outcome.errors == []


def test_so_many_requests_are_sent_and_no_more():
    seen = []
    outcome = loaded(answering(seen=seen), clients=4, requests=100)
    assert len(outcome.samples) == outcome.answered == 100
    assert len(seen) == 101, "one to see whether the server is there"
    assert outcome.answered_items == 150
    assert sum(body == b'["a","b"]' for _, body, _ in seen) == 50


def test_what_is_sent():
    seen = []
    loaded(answering(seen=seen), clients=1, requests=3, headers={"X-Mine": "1"})
    head, body, at = seen[-1]
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /x HTTP/1.1"
    assert {"X-Mine: 1", "Content-Type: application/json", f"Content-Length: {len(body)}"} <= set(lines)
    (start,) = [line.partition(": t=")[2] for line in lines if line.startswith("X-Request-Start")]
    assert at - 0.5 < float(start) <= at
    seen.clear()
    loaded(answering(seen=seen), clients=1, requests=1, bodies=[Body(b"", "")])
    assert seen[0][0].startswith(b"GET /x HTTP/1.1\r\n")
    assert b"content-type" not in seen[0][0].lower()


def test_an_open_loop_sends_whether_or_not_it_is_answered():
    outcome = loaded(answering(seconds=0.2), arrivals=Arrivals("uniform", 100.0), seconds=0.5)
    assert len(outcome.samples) == 50
    assert np.allclose(np.diff(outcome.samples.sent), 0.01, atol=1e-6)
    # So many at a time, at 100 a second that each take 0.2 s; on a busy machine more.
    assert 19 <= outcome.generator["connections"] <= 40
    assert 15 <= outcome.answered <= 31, "the last 0.2 s come too late for the rate"


def test_latency_counts_from_when_a_request_was_due():
    lock = asyncio.Lock()

    async def one_at_a_time(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await read_request(reader)
                async with lock:
                    await asyncio.sleep(0.02)
                    writer.write(OK)

    outcome = loaded(one_at_a_time, arrivals=Arrivals("uniform", 100.0), seconds=0.4)
    # Each takes twice as long as the time to the next one: the n-th waits n · 10 ms.
    expected = 20 + 10 * np.arange(40)
    assert (outcome.samples.latency > expected - 3).all()
    assert np.median(outcome.samples.latency / expected) < 1.6, "a busy machine adds some"


def test_waiting_for_a_connection_is_reported():
    outcome = loaded(answering(seconds=0.05), arrivals=Arrivals("uniform", 100.0), seconds=0.3, connections=2)
    assert outcome.generator["connections"] == 2
    assert outcome.generator["waited_for_connection"] > 10
    assert outcome.samples.latency.max() > 300


def test_a_trace_is_followed_to_its_end():
    outcome = loaded(answering(), arrivals=Arrivals("trace", times=(0.0, 0.0, 0.05, 0.2)))
    assert np.allclose(outcome.samples.sent - outcome.samples.sent[0], [0, 0, 0.05, 0.2], atol=1e-6)
    assert outcome.answered == 4
    assert 0.2 <= outcome.seconds < 0.4


def test_failures_are_reported_by_status_and_reason_and_reconnects_are_counted():
    busy = b'HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 19\r\n\r\n{"message": "full"}'
    count = 0

    async def handle(reader, writer):
        nonlocal count
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await read_request(reader)
                count += 1
                writer.write(busy if count % 5 == 0 else OK)

    outcome = loaded(handle, clients=1, requests=20)
    assert outcome.errors == [{"status": 503, "reason": "full", "count": 4}]
    assert outcome.generator["reconnects"] == 4
    assert outcome.answered == 16
    assert sorted(set(outcome.samples.status)) == [200, 503]


def test_a_time_out_is_no_answer_that_took_so_long():
    async def handle(reader, writer):
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        await reader.read()

    outcome = loaded(handle, clients=1, requests=2, timeout=0.1)
    assert outcome.errors == [{"status": 0, "reason": "no answer in 0.1 s", "count": 1}]
    assert 100 <= outcome.samples.latency[outcome.samples.status == 0].item() < 200


def test_an_idle_connection_that_the_server_closed_is_no_failure():
    async def handle(reader, writer):
        await read_request(reader)
        writer.write(OK)
        await writer.drain()
        # Closed without a word, as an idle time-out does it.

    outcome = loaded(handle, arrivals=Arrivals("uniform", 50.0), seconds=0.3)
    assert outcome.errors == []
    assert outcome.answered == 15
    assert outcome.generator["reconnects"] >= 14


def test_a_request_that_met_a_closing_connection_is_sent_again():
    async def handle(reader, writer):
        await read_request(reader)
        writer.write(OK)
        await read_request(reader)
        # It was on its way when the server decided to close.

    outcome = loaded(handle, clients=1, requests=5)
    assert outcome.errors == []
    assert outcome.answered == 5
    assert (outcome.generator["resent"], outcome.generator["connections"]) == (5, 6)


@dataclass
class Tokens:
    """A token that changes with every reading."""

    readings: int = 0

    def token(self, kind):
        assert kind == "inference"
        self.readings += 1
        return f"token-{self.readings}"


def test_a_token_that_was_renewed_meanwhile_is_read_again():
    refused = b'HTTP/1.1 400 Bad\r\nContent-Length: 31\r\n\r\n{"type": "InvalidKeyException"}'

    async def handle(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head, _ = await read_request(reader)
                writer.write(OK if b"Authorization: Bearer token-3\r\n" in head else refused)

    outcome = loaded(handle, clients=1, requests=5, tokens=Tokens())
    assert outcome.errors == []
    assert outcome.generator["new_tokens"] == 2


def test_a_header_is_stronger_than_the_token():
    seen = []
    headers = {"AUTHORIZATION": "Bearer mine"}
    loaded(answering(seen=seen), clients=1, requests=1, tokens=Tokens(), headers=headers)
    assert [line for line in seen[-1][0].splitlines() if b"uthorization" in line.lower()] == [
        b"AUTHORIZATION: Bearer mine"
    ]


def test_progress_is_reported():
    told = []
    loaded(answering(seconds=0.01), told.append, clients=2, seconds=1.3, warm_up=0.2)
    assert 1 <= len(told) <= 3
    assert [progress.warm for progress in told] == [True] * len(told)
    assert all(40 < progress.rate < 220 for progress in told)


NOT_FOUND = b'HTTP/1.1 404 No\r\nContent-Length: 17\r\n\r\n{"message": "no"}'
BROKEN = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "raw, error, message",
    [
        pytest.param(NOT_FOUND, UsageError, "answered 404 to /x, so nothing was measured: no", id="404"),
        pytest.param(BROKEN, ServerError, "answered 503", id="503"),
    ],
)
def test_a_server_that_refuses_everything_is_not_measured(raw, error, message):
    with pytest.raises(error, match=message):
        loaded(answering(raw), clients=1, seconds=60)


def test_a_server_that_is_not_there():
    async def work():
        load = Load(address=Address("127.0.0.1", 9, False, "/"), bodies=BODIES, clients=1, seconds=60)
        await Generator(load).run()

    with pytest.raises(ServerError, match=r"no answer from 127\.0\.0\.1:9: connection refused"):
        asyncio.run(work())


def test_a_name_that_is_none():
    async def work():
        load = Load(address=Address("a" * 70, 9, False, "/"), bodies=BODIES, clients=1, seconds=60)
        await Generator(load).run()

    with pytest.raises(ServerError, match="aaa is not a host name"):
        asyncio.run(work())


def test_one_bad_request_does_not_keep_from_measuring():
    bad = b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n"

    async def handle(reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                _, body = await read_request(reader)
                writer.write(bad if body == b'"a"' else OK)

    outcome = loaded(handle, clients=1, requests=10)
    assert outcome.answered == 5
    assert outcome.errors == [{"status": 400, "reason": "bad", "count": 5}]
