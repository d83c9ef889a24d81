"""The line-by-line loop of ``tsbatch run`` without a model."""

from __future__ import annotations

import io
import json
import tracemalloc

from tsbatch.emulation.frames import Answer
from tsbatch.system import console
from tsbatch.testing.offline_batches import Tally, run_lines


class Upper:
    """A runner whose answer is its request in capitals."""

    batch_size = 8

    def predict(self, calls):
        return [Answer("", 200, "", json.dumps(call.body.decode().upper()).encode()) for call in calls]


class Nowhere(io.RawIOBase):
    def write(self, data):
        return len(data)


def test_memory_does_not_grow_with_the_input():
    def peak(lines):
        tracemalloc.start()
        tally = Tally()
        source = (b"x" * 1000 + b"\n" for _ in range(lines))
        run_lines(Upper(), source, Nowhere(), tally, content_type="text/plain", step=console.Step(lambda *_: None, ""))
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert tally.requests == lines
        return highest

    assert peak(8000) < peak(800) + 50_000 < 400_000


def test_progress_is_in_bytes_of_the_input_and_answers_are_there_after_each_batch():
    sink, seen = io.BytesIO(), []
    step = console.Step(lambda done, _: seen.append((done, sink.getvalue().count(b"\n"))), "")
    tally = Tally()
    run_lines(Upper(), io.BytesIO(b"ab\n" * 9 + b"c"), sink, tally, content_type="text/plain", step=step)
    assert seen == [(24, 8), (28, 10)]
    assert json.loads(sink.getvalue().splitlines()[-1]) == {"index": 9, "status": 200, "body": "C"}
    assert (tally.requests, tally.batches, tally.failed) == (10, 2, {})
