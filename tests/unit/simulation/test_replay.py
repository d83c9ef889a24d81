"""Arrivals through a handler's batching, without a server."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsbatch import BatchHandler, ModelContext, Request
from tsbatch.simulation.batching_rules import Settings
from tsbatch.simulation.replay import replay
from tsbatch.simulation.service_time import parse


def test_the_batches_are_those_of_torchserve():
    seen = []

    def handle(batch):
        seen.append(batch)
        return [text.upper() for text in batch]

    told = replay(handle, ["a", "b", "c"], [0.0, 0.001, 0.5], Settings(batch_size=2), parse("20ms"))
    assert seen == [["a", "b"], ["c"]]
    assert told.answers == ["A", "B", "C"]
    assert [list(batch) for batch in told.batches] == [[0, 1], [2]]
    assert told.simulated.samples.batch.tolist() == [2, 2, 1]


def test_whom_the_queue_refuses_is_not_answered():
    told = replay(list, ["a", "b", "c"], [0.0, 0.001, 0.002], Settings(queue_size=1), parse("20ms"))
    assert told.answers == ["a", "b", None]


def test_without_a_service_time_the_handler_is_as_fast_as_it_is():
    told = replay(lambda batch: batch, [1, 2], [0.0, 0.001], Settings(batch_size=1))
    assert (told.simulated.samples.handler < 5).all()
    assert (told.simulated.samples.handler > 0).all()


@pytest.mark.parametrize("handle", [lambda batch: batch[1:], lambda batch: [*batch, 1]])
def test_a_wrong_number_of_answers(handle):
    with pytest.raises(ValueError, match="zip"):
        replay(handle, [1, 2], [0.0, 0.001], Settings(), parse("20ms"))


def test_a_wrong_number_of_arrivals():
    with pytest.raises(ValueError, match="2 requests and 1 arrivals"):
        replay(list, [1, 2], [0.0], Settings())


def test_a_handler_of_ours(tmp_path):
    class Doubling(BatchHandler):
        def load_model(self):
            return torch.nn.Identity()

        def postprocess(self, outputs, items):
            return [2 * row.sum().item() for row in outputs]

    handler = Doubling()
    handler.load(ModelContext(model_dir=tmp_path))
    random = np.random.default_rng(0)
    arrivals = np.cumsum(random.exponential(0.01, 50)).tolist()
    requests = [Request.of({"instances": [[float(number)]]}) for number in range(50)]
    told = replay(handler.answer, requests, arrivals, Settings(batch_size=4, max_batch_delay=20), parse("10ms"))
    assert [answer.body for answer in told.answers] == [b'{"predictions":[%.1f]}' % (2 * n) for n in range(50)]
    assert {len(batch) for batch in told.batches} >= {1, 2, 3}
