"""What the benchmarks compute from what they measured."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from benchmarks import closing, handler_overhead, load
from tests.e2e.timing import Logged, Timed, split_of_log


def test_the_ratio_is_the_median_of_neighbouring_turns():
    # The machine got twice as fast on the way; neighbours still compare.
    comparison = handler_overhead.Comparison(tsbatch=[90, 95, 180, 200, 160], minimal=[100, 100, 200, 200, 200])
    assert comparison.ratios == [0.9, 0.95, 0.9, 1.0, 0.8]
    assert comparison.ratio == 0.9
    figures = comparison.figures()
    assert (figures["ratio"], figures["lowest"], figures["highest"], figures["turns"]) == (0.9, 0.8, 1.0, 5)


def test_a_row_counts_tries_and_the_time_that_was_left():
    row = closing.Row("stop", "idle")
    row.add([], gone=True)
    row.add([10.0, 10.001, 10.0025], gone=True)
    row.add([20.0], gone=False)
    assert (row.tries, row.reached, row.gone, row.left) == (3, 2, 2, [2.5, 0.0])
    assert row.time_left == "0 ms, 1 ms"
    assert closing.Row("stop", "idle").time_left == "-"
    assert closing.table_of([row]).splitlines()[-1] == "| stop | idle | 2 of 3 | 0 ms, 1 ms | 2 of 3 |"


def test_guarantees_that_do_not_hold_are_listed():
    kept = [closing.Row("stop", "idle", 20, 3, gone=20), closing.Row("time-out", "asleep", 20, 20, gone=20)]
    assert closing.broken_guarantees(kept) == []
    for row in (closing.Row("stop", "idle", 20, 20, gone=19), closing.Row("killed frontend", "idle", 20, 19, gone=20)):
        assert closing.broken_guarantees([*kept, row]) == [row]


def test_an_idle_worker_cannot_be_late():
    cells = closing.cells(closing.WAYS)
    assert ("time-out", "idle") not in cells
    assert len(cells) == len(closing.WAYS) * len(closing.STATES) - 1


async def loaded(answer, **arguments):
    """A load on a server of its own, where every connection is closed in the end."""

    async def serve(reader, writer):
        with suppress(ConnectionError):
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        try:
            return await load.run("127.0.0.1", server.sockets[0].getsockname()[1], [b"GET!"], **arguments)
        finally:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_the_load_sends_all_and_waits_for_whole_answers(pieces):
    seen = []
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"
    size = -(-len(whole) // pieces)

    async def answer(reader, writer):
        while data := await reader.read(4):
            seen.append(data)
            for start in range(0, len(whole), size):
                writer.write(whole[start : start + size])
                await writer.drain()
                await asyncio.sleep(0.001)

    figures = asyncio.run(loaded(answer, round_size=25, connections=4))
    assert figures.requests == 25
    assert figures.answers == len(seen) == 28, "three were on their way when the round was over"
    assert figures.rate == pytest.approx(25 / figures.seconds, rel=0.02)
    assert set(seen) == {b"GET!"}


@pytest.mark.parametrize("said", [b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", b""])
def test_a_load_with_a_failure_in_it_is_no_figure(said):
    async def answer(reader, writer):
        await reader.read(4)
        writer.write(said)

    with pytest.raises(SystemExit, match="load: "):
        asyncio.run(loaded(answer, round_size=1, connections=1))


LOG = """
2026-01-02T03:04:05,000 [DEBUG] W-9000-m_1.0 org.pytorch.serve.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: {first}
2026-01-02T03:04:05,000 [DEBUG] W-9000-m_1.0 org.pytorch.serve.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: {first}
2026-01-02T03:04:05,050 [INFO ] W-9000-m_1.0 org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId a
2026-01-02T03:04:05,050 [DEBUG] W-9000-m_1.0 org.pytorch.serve.job.RestJob - Waiting time ns: 100000000, Backend time ns: 1
2026-01-02T03:04:05,050 [INFO ] W-9001-other_1.0 org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId x
2026-01-02T03:04:05,050 [INFO ] W-9000-m_1.0 org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId b
2026-01-02T03:04:05,050 [DEBUG] W-9000-m_1.0 org.pytorch.serve.job.RestJob - Waiting time ns: 30000000, Backend time ns: 1
2026-01-02T03:04:05,050 [INFO ] W-9000-m_1.0 org.pytorch.serve.wlm.WorkerThread - Backend response time: 50
2026-01-02T03:04:05,060 [DEBUG] W-9000-m_1.0 org.pytorch.serve.wlm.WorkerThread - Flushing req.cmd PREDICT repeats 1 to backend at: {second}
2026-01-02T03:04:05,070 [INFO ] W-9000-m_1.0 org.pytorch.serve.wlm.BatchAggregator - Sending response for jobId c
2026-01-02T03:04:05,070 [DEBUG] W-9000-m_1.0 org.pytorch.serve.job.RestJob - Waiting time ns: 40000000, Backend time ns: 1
2026-01-02T03:04:05,070 [INFO ] W-9000-m_1.0 org.pytorch.serve.wlm.WorkerThread - Backend response time: 10
"""  # noqa: E501 - as TorchServe writes them


def test_the_split_of_a_log(tmp_path):
    import time

    zero = int(time.mktime(time.strptime("2026-01-02T03:04:05", "%Y-%m-%dT%H:%M:%S")) * 1000)
    path = tmp_path / "ts_log.log"
    path.write_text(LOG.format(first=zero, second=zero + 60))
    # a began the first batch and waited 100 ms for others, b came 30 ms before the end; c came 40 ms before the
    # second batch, of which the first took 30: the worker was free at +50.
    assert split_of_log(path, "m") == {"a": Logged(0, 100), "b": Logged(0, 30), "c": Logged(30, 10)}


@pytest.mark.parametrize(
    "total, queue, agrees",
    [(100, 55, True), (100, 54.9, False), (1000, 910, True), (1000, 909, False), (100, 66, False)],
)
def test_agreement_is_five_milliseconds_or_five_percent(total, queue, agrees):
    parts = {"queue": queue, "assembly": 10, "handler": 30}
    assert Timed(0, total, parts, 1, "id").agrees is agrees
