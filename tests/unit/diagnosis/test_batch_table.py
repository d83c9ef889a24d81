from __future__ import annotations

import numpy as np
import pytest

from tests.unit.diagnosis.tables import Traffic
from tsbatch.bench.request_table import Samples
from tsbatch.diagnosis.batch_table import batch_numbers, batches_of


def test_batches_are_put_together_again():
    traffic = Traffic()
    traffic.batch([0, 5], begun=0, left=20, handler=40)
    traffic.batch([30, 31, 32], begun=61, left=62, handler=41, worker=1)
    traffic.refused(40)
    table = batches_of(traffic.samples())
    assert table.size.tolist() == [2, 3]
    assert table.handed_over.tolist() == [20, 62]
    assert table.held.tolist() == [20, 1]
    assert table.handler.tolist() == [40, 41]
    assert table.worker.tolist() == [0, 1]


def test_similar_batches_are_distinguished_by_their_hand_over():
    traffic = Traffic()
    for at in (0, 50, 100):
        traffic.batch([at], begun=at, left=at + 1, handler=40)
    assert batches_of(traffic.samples()).handed_over.tolist() == [1, 51, 101]


def test_clocks_of_the_members_may_differ_a_little():
    samples = Samples(
        sent=np.array([0.0, 0.0100003]), latency=[60, 50], status=[200, 200], queue=[0, 0], assembly=[20, 10.2],
        handler=[40, 40], batch=[2, 2],
    )  # fmt: skip
    assert len(batches_of(samples)) == 1


def test_how_many_are_in_the_handler_at_once():
    traffic = Traffic()
    traffic.batch([0], begun=0, left=0, handler=100)
    traffic.batch([50], begun=50, left=50, handler=50, worker=1)
    traffic.batch([500], begun=500, left=500, handler=50)
    # 200 ms of handler time in 150 ms in which any worker computed.
    assert batches_of(traffic.samples()).at_once == pytest.approx(200 / 150)
    assert batches_of(Samples([], [], [])).at_once == 0


def test_each_request_finds_its_batch_among_batches_of_equal_handler_time():
    traffic = Traffic()
    for at in (0, 50, 100):
        traffic.batch([at, at], begun=at, left=at + 1, handler=40)
    assert batch_numbers(traffic.samples()).tolist() == [0, 0, 1, 1, 2, 2]
